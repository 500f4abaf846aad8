"""PID 1 of the guest: mounts, reaps, keeps descriptors, restarts, powers off.

| module | subject |
|---|---|
| `guest` | what the guest looks like: mounts, services, last act |
| `layout` | the words for that; a test bed has a layout of its own |
| `supervisor` | boot, then the loop that never ends |
| `mounts`, `console`, `entropy`, `modules`, `hostname`, `cgroups` | steps of the boot |
| `loop` | epoll, deadlines, and errors that don't stop it |
| `reaper`, `journal` | every exit is recorded before it is reaped |
| `services`, `spawn`, `launch` | children of ours, and how they are kept running |
| `store`, `requests`, `server` | the socket: descriptors, journal, power |
| `shutdown`, `leaving` | the way down, each step with a bound; what becomes of the mounts |

Standard library and `agent.linux` only, and few imports: under emulation each
costs. Values are NamedTuples because the import of `dataclasses` alone takes
as long as all of ours together.
"""

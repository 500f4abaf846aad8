"""reboot(2): power off, restart, and who gets ctrl-alt-del.

Both calls end the machine at once: nothing is stopped, synced or unmounted by
them. They need CAP_SYS_BOOT; in a PID namespace of its own they end only that
namespace's init.
"""

from __future__ import annotations

from agent.linux.libc import check, libc

# <sys/reboot.h>
_RB_AUTOBOOT = 0x01234567
_RB_POWER_OFF = 0x4321FEDC
_RB_DISABLE_CAD = 0


def power_off() -> None:
    """Stop the machine and switch it off."""
    check(_reboot(_RB_POWER_OFF), "reboot(RB_POWER_OFF)")


def restart() -> None:
    """Start the machine again."""
    check(_reboot(_RB_AUTOBOOT), "reboot(RB_AUTOBOOT)")


def ctrl_alt_del_to_init() -> None:
    """From now on ctrl-alt-del is a SIGINT for PID 1, not an immediate restart."""
    check(_reboot(_RB_DISABLE_CAD), "reboot(RB_DISABLE_CAD)")


def _reboot(command: int) -> int:
    # The argument is an int: the larger constants are negative ones.
    return int(libc.reboot(command - (1 << 32) if command >= 1 << 31 else command))

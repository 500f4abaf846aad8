"""The host's side of one VM: its daemon, and the client that starts and finds daemons.

client        for those who want a VM: start_vm, find_vm, list_vms, Vm
daemon, vm    one VM from its start to its end
machine       QEMU's command line; topology, disks, accel, link are its parts
qemu, qmp     the process and its monitor
plug, plugged devices in and out, one transaction over both sides; table says who has
              which id and place, removal reads QEMU's events about it
hardware/     every kind of hardware, one file each, in one list
cold          hardware that is there from the start
proxy, guest  the way to the guest's services: everybody's, and the daemon's own
writing       into streaming calls, without losing how they ended
host_service  what the daemon answers itself
statedir      where running VMs are found; images: where built images are
"""

"""Byte streams from the host into the guest, whatever carries them.

address       vsock://3:1024, hvsock:///vm.sock:1024, unix:///port.sock
stream        what a stream and a transport are; streams on sockets
kernel_vsock  AF_VSOCK through the kernel's vhost-vsock
hybrid_vsock  a unix socket with a CONNECT line (vhost-device-vsock, Firecracker, Cloud Hypervisor)
serial        a virtio-serial port behind a unix socket, with sessions
vhost_user    vhost-device-vsock: its command line and QEMU's
bridge        a local unix socket for gRPC, joined to a transport
choose        the best transport that this host has
"""

"""Programs that try to get out of the sandbox, to take more than they may, or to stay.

Each of `REACHES` does one thing that must fail, and raises where it does. Each of `HOARDS` takes
what it can of some kind of memory and keeps it, and prints how many MiB it has after every MiB.
Each of `ATTACKS` does something to the runner, the first process of the sandbox.
"""

from __future__ import annotations

import platform

_NUMBERS = {
    "clone": (56, 220), "clone3": (435, 435), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "setns": (308, 268), "fsopen": (430, 430), "open_tree": (428, 428),
    "process_vm_readv": (310, 270), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "add_key": (248, 217),
    "keyctl": (250, 219), "inotify_init1": (294, 26), "timer_create": (222, 107),
    "capset": (126, 91), "personality": (135, 92), "init_module": (175, 105),
    "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
}  # fmt: skip
"""Of system calls, on x86_64 and on aarch64."""

PRELUDE = f"""
import ctypes, fcntl, mmap, os, resource, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = libc.shmat.restype = ctypes.c_long
MIB = 1 << 20
NUMBERS = { {name: both[platform.machine() != "x86_64"] for name, both in _NUMBERS.items()} }

def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def system_call(name, *arguments):
    values = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    return checked(libc.syscall(ctypes.c_long(NUMBERS[name]), *values))

def touched(view, size):
    for at in range(0, size, 4096):
        view[at] = 1
"""

REACHES = {
    # Files
    "the home folder": "os.listdir(os.path.expanduser('~root'))",
    "the configuration of the host": "os.listdir('/etc')",
    "the password file": "open('/etc/shadow').read()",
    "a write to the libraries": "open('/usr/lib/x', 'w')",
    "a write to the root": "open('/x', 'w')",
    "a write to Python's library": "open(os.__file__, 'a')",
    "a write over the runner": "open('/runner.py', 'a')",
    "a file in /tmp": "open('/tmp/x', 'w')",
    "an unnamed file in /tmp": "os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
    "a folder in /tmp": "os.mkdir('/tmp/x')",
    "a link in /tmp": "os.symlink('/', '/tmp/x')",
    "a pipe with a name": "os.mkfifo('/tmp/x')",
    "a file in /dev": "open('/dev/x', 'w')",
    "a file in shared memory": "open('/dev/shm/x', 'w')",
    "a file where the packages were": "open('/python/lib/python%d.%d/site-packages/x' "
    "% sys.version_info[:2], 'w')",
    "a device": "os.mknod('/tmp/x', 0o600 | 0o060000, os.makedev(8, 0))",
    "the kernel's log": "open('/dev/kmsg')",
    "the machine's memory": "open('/dev/mem', 'rb')",
    "a file by its handle": "system_call('name_to_handle_at', -100, b'/tmp', 0, 0, 0)",
    "packages beside Python's library": """
found = [
    os.path.join(folder, name)
    for top in ('/usr', '/python', '/lib', '/tmp', '/runner.py')
    for folder, folders, names in os.walk(top)
    for name in (*folders, *names)
    if name.startswith(('echoscope', 'numpy', 'programs.jsonl')) or name.endswith('.dist-info')
]
assert found
""",
    # Rights
    "another user": "os.setuid(0)",
    "another group": "os.setgid(0)",
    "more groups": "os.setgroups([0])",
    "capabilities": "system_call('capset', *map(ctypes.addressof, ("
    "ctypes.create_string_buffer(struct.pack('Ii', 0x20080522, 0)), "
    "ctypes.create_string_buffer(struct.pack('6I', *[0xFFFFFFFF] * 6)))))",
    "users of a new namespace": "os.write(os.open('/proc/self/uid_map', os.O_WRONLY), b'0 0 1')",
    "the kernel's settings": "open('/proc/sys/kernel/core_pattern', 'w')",
    "the kernel's emergency keys": "open('/proc/sysrq-trigger', 'w')",
    "a higher limit of memory": "resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))",
    "a higher limit of file size": "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))",
    "locked memory": "checked(libc.mlock(ctypes.create_string_buffer(MIB), MIB))",
    "the host's name": "socket.sethostname('x')",
    "the clock": "time.clock_settime(time.CLOCK_REALTIME, 0)",
    "a higher priority": "os.setpriority(os.PRIO_PROCESS, 0, -10)",
    "real-time scheduling": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "another personality": "system_call('personality', 0x0040000)",
    # Namespaces and mounts
    "a mount": "checked(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
    "a mount made writable": "checked(libc.mount(None, b'/tmp', None, 32, None))",
    "the end of a mount": "checked(libc.umount2(b'/usr/lib', 2))",
    "a file system of the new kind": "system_call('fsopen', b'tmpfs', 0)",
    "a mount of the new kind": "system_call('open_tree', -100, b'/tmp', 1)",
    "another root": "os.chroot('/tmp')",
    "a user namespace": "checked(libc.unshare(0x10000000))",
    "a user and a mount namespace": "checked(libc.unshare(0x10020000))",
    "a namespace by clone": "system_call('clone', 0x10000000 | 17, 0, 0, 0, 0)",
    "a namespace by clone for a thread": "system_call('clone', 0x10000000 | 0x3D0F00, 0, 0, 0, 0)",
    "a namespace by clone3": "system_call('clone3', ctypes.addressof(ctypes.create_string_buffer("
    "struct.pack('11Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0))), 88)",
    "the runner's namespace": "system_call('setns', os.open('/proc/1/ns/mnt', 0), 0)",
    "its own namespace again": "system_call('setns', os.open('/proc/self/ns/user', 0), 0)",
    # The runner
    "the runner's environment": "open('/proc/1/environ').read()",
    "the runner's memory": "open('/proc/1/mem', 'rb')",
    "the runner's memory, to write": "open('/proc/1/mem', 'r+b')",
    "the runner's files": "os.listdir('/proc/1/fd')",
    "the runner's output": "os.write(os.open('/proc/1/fd/1', os.O_WRONLY), b'[]')",
    "the runner's root": "os.listdir('/proc/1/root')",
    "the runner's addresses": "assert open('/proc/1/maps').read()",
    "the runner by ptrace": "checked(libc.ptrace(16, 1, 0, 0))",
    "the runner by seizing": "checked(libc.ptrace(0x4206, 1, 0, 0))",
    "the runner by reading its memory": "system_call('process_vm_readv', 1, 0, 0, 0, 0, 0)",
    "a handle of the runner": "system_call('pidfd_open', 1, 0)",
    "a file of the runner": "system_call('pidfd_getfd', 3, 1, 0)",
    "a comparison with the runner": "system_call('kcmp', 1, os.getpid(), 0, 0, 0)",
    "the runner's limits": "resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
    "the runner's processors": "os.sched_setaffinity(1, {0})",
    "the runner's priority": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "another process": "assert [n for n in os.listdir('/proc') if n.isdigit() "
    "and int(n) not in (1, os.getpid())]",
    "a file that the runner left open": "os.fstat(3)",
    "the trainer's environment": "assert set(os.environ) - {'LANG', 'PWD', 'LC_CTYPE'}",
    # The network
    "a connection": "socket.create_connection(('127.0.0.1', PORT), 1)",
    "a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "a server": "socket.create_server(('127.0.0.1', 0))",
    "a name server": "socket.gethostbyname('localhost.')",
    "a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)",
    "a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "a socket to the hypervisor": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "the kernel's ciphers": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET, 0)",
    "a local socket": "socket.socket(socket.AF_UNIX).bind(b'\\x00x')",
    "a socket pair of another kind": "socket.socketpair(socket.AF_TIPC, socket.SOCK_STREAM)",
    # Processes that would stay
    "a process": "os.fork() or os._exit(0)",
    "a process by the C library": "checked(libc.vfork()) or os._exit(0)",
    "another program": "os.execv(sys.executable, [sys.executable, '-c', 'print(\"reached\")'])",
    "another program beside": "subprocess.run([sys.executable, '-c', ''], check=True)",
    "a daemon": "os.fork() == 0 and (os.setsid(), os.fork(), time.sleep(60))",
    "a shell": "assert os.system('true') == 0",
    # Parts of the kernel that nobody needs here
    "a program for the kernel": "system_call('bpf', 0, 0, 0)",
    "a counter of events": "system_call('perf_event_open', 0, 0, -1, -1, 0)",
    "its own page faults": "system_call('userfaultfd', 1)",
    "a ring of calls": "system_call('io_uring_setup', 1, ctypes.addressof("
    "ctypes.create_string_buffer(128)))",
    "a key": "system_call('add_key', b'user', b'x', b'x', 1, -1)",
    "a keyring": "system_call('keyctl', 0, -3, 1)",
    "a kernel module": "system_call('init_module', 0, 0, b'')",
    "a watch of files": "system_call('inotify_init1', 0)",
    "a watch of all files": "system_call('fanotify_init', 0, 0)",
    "semaphores that stay": "system_call('semget', 0, 100, 0o1600)",
    "messages that stay": "system_call('msgget', 0, 0o1600)",
    "a message queue": "system_call('mq_open', b'x', 0o102, 0o600, 0)",
    "a timer of the kernel": "system_call('timer_create', 0, 0, ctypes.addressof("
    "ctypes.create_string_buffer(8)))",
    "a lock of a file": "fcntl.lockf(1, fcntl.LOCK_EX, 1, 5)",
    "a larger pipe": "fcntl.fcntl(os.pipe()[1], 1031, MIB)",
    "a letter typed for the user": "fcntl.ioctl(0, 0x5412, b'x')",
    "secret memory": "system_call('memfd_secret', 0)",
}

HOARDS = {
    "a bytearray": """
kept = []
while True:
    kept.append(bytearray(b'x' * MIB)); print(len(kept), flush=True)
""",
    "shared pages": """
kept = []
while True:
    kept.append(mmap.mmap(-1, MIB)); touched(kept[-1], MIB); print(len(kept), flush=True)
""",
    "pages of /dev/zero": """
kept, zero = [], os.open('/dev/zero', os.O_RDWR)
while True:
    kept.append(mmap.mmap(zero, MIB)); touched(kept[-1], MIB); print(len(kept), flush=True)
""",
    "shared memory of System V": """
for number in range(1, 2000):
    key = system_call('shmget', 0, MIB, 0o1600)
    place = checked(libc.shmat(key, None, 0))
    touched((ctypes.c_char * MIB).from_address(place), MIB)
    libc.shmdt(ctypes.c_void_p(place)); print(number, flush=True)
""",
    "files in memory": """
for number in range(1, 2000):
    file = system_call('memfd_create', b'x', 0)
    for part in range(MIB // 4096): os.write(file, b'x' * 4096)
    print(number, flush=True)
""",
    "files in /tmp": """
for number in range(1, 2000):
    with open(f'/tmp/{number}', 'wb') as file: file.write(b'x' * MIB)
    print(number, flush=True)
""",
    "files in a tmpfs of its own": """
checked(libc.unshare(0x10020000))
checked(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))
for number in range(1, 2000):
    with open(f'/tmp/{number}', 'wb') as file: file.write(b'x' * MIB)
    print(number, flush=True)
""",
    "files in /dev/shm": """
for number in range(1, 2000):
    with open(f'/dev/shm/{number}', 'wb') as file: file.write(b'x' * MIB)
    print(number, flush=True)
""",
    "its input": """
for number in range(1, 2000):
    os.pwrite(0, b'x' * MIB, number * MIB); os.write(1, b'%d\\n' % number)
""",
    "its errors": """
for number in range(1, 2000):
    os.write(2, b'x' * MIB); os.write(1, b'%d\\n' % number)
""",
    "pipes": """
kept, total = [], 0
while True:
    kept.append(os.pipe()); os.set_blocking(kept[-1][1], False)
    try:
        while True: total += os.write(kept[-1][1], b'x' * 4096)
    except BlockingIOError: print(total // MIB, flush=True)
""",
    "pairs of sockets": """
kept, total = [], 0
while True:
    kept += socket.socketpair()
    for end in kept[-2:]:
        end.setblocking(False)
        try:
            while True: total += end.send(b'x' * 4096)
        except BlockingIOError: print(total // MIB, flush=True)
""",
    "processes": """
for number in range(1, 8):
    if os.fork() == 0:
        kept = bytearray(b'x' * 200 * MIB); print(200 * number, flush=True); time.sleep(9)
time.sleep(9)
""",
    "stacks of threads": """
threading.stack_size(64 * MIB)
for number in range(1, 20):
    threading.Thread(target=time.sleep, args=(9,)).start(); print(64 * number, flush=True)
""",
    "pages held by a key of shared memory": """
from multiprocessing.shared_memory import SharedMemory
kept = []
while True:
    kept.append(SharedMemory(create=True, size=MIB)); touched(kept[-1].buf, MIB)
    print(len(kept), flush=True)
""",
}

ATTACKS = {
    "an end": "os.kill(1, signal.SIGKILL)",
    "a stop": "os.kill(1, signal.SIGSTOP)",
    "an interrupt": "os.kill(1, signal.SIGINT)",
    "a hangup": "os.kill(1, signal.SIGHUP)",
    "every signal": """
for number in range(1, 65):
    try: os.kill(1, number)
    except (PermissionError, ValueError): pass
""",
    "an end of everything": "os.kill(-1, signal.SIGKILL)",
    "an end of its group": "os.killpg(0, signal.SIGKILL)",
    "a limit of its time": "resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
    "a trace that holds it": "checked(libc.ptrace(16, 1, 0, 0)); time.sleep(60)",
    "a tree of JSON": "print('[' * 100000)",
    "a forged answer": """print('["right", "", 0, false]')""",
    "closed files": "os.closerange(0, 64)",
}

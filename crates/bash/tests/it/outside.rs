//! Other processes and the kernel: the engine's memory first of all.

use crate::harness::{HELPER, at_every_level};
use bash::FeatureName;

/// Runs a command below an engine of its own, which is of the same user and protects itself.
fn below_an_engine(setting: &crate::harness::Setting, command: &str, all_allowed: bool) -> String {
    let scratch = setting.new_folder("scratch");
    let request = serde_json::json!({ "command": command, "scratch": scratch, "all_allowed": all_allowed });
    let mut engine = std::process::Command::new(HELPER);
    let engine = engine.env("ENGINE_SECRET", "swordfish").args(setting.options).args(["engine", &request.to_string()]);
    let output = engine.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["level"], setting.level().word());
    said["finished"]["stdout"].as_str().unwrap().to_owned()
}

#[test]
fn the_memory_of_the_engine_cannot_be_read() {
    at_every_level("memory of the engine", |setting| {
        let text = "for pid in $ENGINE $PPID; do
                 for file in mem environ maps auxv fd/0 pagemap; do
                     # The first page is never mapped, so only an opened file counts.
                     { exec 9< /proc/$pid/$file && { [ $pid = $PPID ] || echo opened $file of $pid; }; } 2> /dev/null
                 done
             done
             cat /proc/*/environ 2> /dev/null | tr '\\0' '\\n' | grep -a ENGINE_SECRET=
             command -v gdb > /dev/null && gdb -batch -p $ENGINE -ex 'info proc' 2> /dev/null | grep '^process'
             echo done";
        for all_allowed in [false, true] {
            let said = below_an_engine(setting, text, all_allowed);
            // `pagemap` and `maps` can be opened by anyone where processes are visible, and then read as nothing.
            let opened: Vec<_> =
                said.lines().filter(|line| !line.contains(" pagemap ") && !line.contains(" maps ")).collect();
            assert_eq!(opened, ["done"], "{said}");
            let said = below_an_engine(setting, "cat /proc/$ENGINE/maps 2> /dev/null | head -n 3; true", all_allowed);
            let is_other = setting.has(FeatureName::ProcessNamespace);
            assert!(said.is_empty() || is_other, "{said}");
        }
    });
}

#[test]
fn the_engine_cannot_be_signalled() {
    at_every_level("signals", |setting| {
        let said = below_an_engine(setting, "kill -0 $ENGINE 2> /dev/null && echo reached; echo done", false);
        if setting.has(FeatureName::SignalConfinement) && setting.is_restricted() {
            // In a namespace, the number can be that of a process of the command, or of none.
            assert_eq!(said, "done\n");
        } else {
            setting.say("weaker here: the engine can be signalled");
            assert_eq!(said, "reached\ndone\n");
        }
    });
}

#[test]
fn dangerous_calls_are_refused() {
    at_every_level("system calls", |setting| {
        if !setting.is_restricted() {
            setting.say("not tried: no filter at this level");
            return;
        }
        let text = "for n in 'unshare -U true' 'unshare -n true' 'unshare -m true' 'mount -t tmpfs none .' \\
                 'chroot . true' 'nsenter -t 1 -p true' 'dmesg' 'hostname x' 'setpriv --reuid 12345 true'; do
                 $n > /dev/null 2>&1 && echo \"$n\"
             done
             grep -E '^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status 2> /dev/null | tr -d '\\t'
             true";
        let said = setting.run(setting.command(text)).stdout;
        let none = "0000000000000000";
        let status = format!("CapInh:{none}\nCapPrm:{none}\nCapEff:{none}\nCapAmb:{none}\nNoNewPrivs:1\nSeccomp:2\n");
        match setting.has(FeatureName::PrivateProc) {
            true => assert_eq!(said, status),
            false => assert_eq!(said, ""),
        }
        let python = "command -v python3 > /dev/null || exit 0
             python3 - << 'END'
import ctypes, errno, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *arguments)
    if ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print(name, ctypes.get_errno())
if os.uname().machine == 'x86_64':
    for name, number in dict(ptrace=101, readv=310, keyctl=250, bpf=321, userfaultfd=323, io_uring=425, unshare=272,
                             clone3=435, perf=298, x32_ptrace=0x40000000 + 521, x32_unshare=0x40000000 + 272).items():
        refused(name, number, 0, 0, 0, 0, 0)
    refused('clone', 56, 0x10000000, 0, 0, 0, 0)
    if LASTING:
        refused('shmget', 29, 0, 4096, 0o1600)
try:
    fcntl.ioctl(0, 0x5412, b'x')
    print('TIOCSTI')
except OSError as error:
    if error.errno != errno.EPERM: print(error)
END";
        let lasting = if setting.has(FeatureName::ProcessNamespace) { "False" } else { "True" };
        assert_eq!(setting.stdout(python.replace("LASTING", lasting)), "");
    });
}

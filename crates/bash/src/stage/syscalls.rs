//! System calls that a command is refused, by seccomp.
//!
//! A list of what is refused, not of what is allowed: bash runs programs we do not know. On it is what reaches into other
//! processes, changes the machine, makes namespaces, or has often been a way around other limits.

use crate::command::{FileAccess, NetworkAccess};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};
use std::collections::BTreeMap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

const REFUSED: &[libc::c_long] = &[
    // Into other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Files by handle go around the path.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    // Large parts of the kernel that few programs need.
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The machine.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
];

const NAMESPACES: &[libc::c_int] = &[
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// What these make stays when its process ends, unless it is in a namespace that ends, too.
const LASTING: &[libc::c_long] = &[libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget];

/// `TIOCSTI` types into a terminal, `TIOCLINUX` pastes into a console.
const TERMINAL: [u64; 2] = [0x5412, 0x541c];

/// For this process and all it starts. Needs `no_new_privs`.
pub fn refuse(files: FileAccess, network: NetworkAccess, has_namespace: bool) -> Result<(), String> {
    let mut not_permitted = Rules::new();
    let lasting = if has_namespace { &[] } else { LASTING };
    not_permitted.extend(REFUSED.iter().chain(lasting).map(|call| (*call, Vec::new())));
    let flags = NAMESPACES.iter().map(|flag| *flag as u64);
    not_permitted.insert(libc::SYS_clone, rules(0, flags.map(|flag| (SeccompCmpOp::MaskedEq(flag), flag)))?);
    not_permitted.insert(libc::SYS_ioctl, rules(1, TERMINAL.into_iter().map(|request| (SeccompCmpOp::Eq, request)))?);
    install(not_permitted, libc::EPERM, true)?;

    // Its flags are in memory, where a filter cannot see them. Programs fall back to `clone`.
    install(Rules::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS, false)?;

    let mut families = vec![libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    if files == FileAccess::Anywhere {
        families.push(libc::AF_UNIX);
    }
    let sockets = match network {
        NetworkAccess::Off => Vec::new(),
        NetworkAccess::On => {
            let conditions = families.into_iter().map(|family| condition(0, SeccompCmpOp::Ne, family as u64));
            let conditions = conditions.collect::<Result<_, _>>()?;
            vec![SeccompRule::new(conditions).map_err(|e| e.to_string())?]
        }
    };
    install(Rules::from([(libc::SYS_socket, sockets)]), libc::EACCES, false)
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, String> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value).map_err(|e| e.to_string())
}

/// One rule for each value.
fn rules(argument: u8, cases: impl Iterator<Item = (SeccompCmpOp, u64)>) -> Result<Vec<SeccompRule>, String> {
    let rule = |(operator, value)| {
        SeccompRule::new(vec![condition(argument, operator, value)?]).map_err(|error| error.to_string())
    };
    cases.map(rule).collect()
}

/// Calls that match get the error; calls for another processor (32-bit programs) end the process.
fn install(rules: Rules, errno: libc::c_int, is_first: bool) -> Result<(), String> {
    let processor = std::env::consts::ARCH.try_into().map_err(|e: seccompiler::BackendError| e.to_string())?;
    let error = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, error, processor).map_err(|e| e.to_string())?;
    let mut program: BpfProgram = filter.try_into().map_err(|e: seccompiler::BackendError| e.to_string())?;
    if is_first && cfg!(target_arch = "x86_64") {
        program.splice(..0, refuse_x32());
    }
    seccompiler::apply_filter(&program).map_err(|error| error.to_string())
}

/// x86-64 has a second set of numbers for the same calls, from 0x4000_0000, which the list does not have. Hardly a
/// program uses them.
fn refuse_x32() -> [sock_filter; 3] {
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS, of the first field
    const JUMP_IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    [
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_AT_LEAST, 0, 1, 0x4000_0000),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ]
}

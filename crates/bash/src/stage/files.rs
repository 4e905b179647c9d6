//! What a command may read and write, by Landlock: an allow list, so that a path that is not on it is out of reach, the
//! engine's data among them.

use crate::command::{FileAccess, NetworkAccess};
use crate::isolation::{LANDLOCK_SIGNALS, LANDLOCK_TCP};
use crate::wire::{Orders, Placed};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use std::path::{Path, PathBuf};

/// Programs and libraries: read and executed.
const PROGRAMS: &[&str] = &[
    "/bin",
    "/gnu/store",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/run/current-system/sw",
    "/sbin",
    "/usr",
];

/// Settings that programs need, and no others: `/etc` also holds passwords and keys.
const SETTINGS: &[&str] = &[
    "/etc/alternatives",
    "/etc/bash.bashrc",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/environment",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/gitconfig",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/inputrc",
    "/etc/java",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/shells",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
];

/// What the kernel tells everyone. Without a private `/proc`, processes are left out: their arguments are readable there.
const KERNEL: &[&str] = &[
    "/dev/random",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/proc/uptime",
    "/proc/version",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
];

const DEVICES: &[&str] = &["/dev/full", "/dev/null", "/dev/zero"];

/// Folders every command can read; a protected path must not be inside of one.
pub fn system_paths() -> impl Iterator<Item = &'static Path> {
    [PROGRAMS, SETTINGS, KERNEL, DEVICES].into_iter().flatten().map(Path::new)
}

/// What one process may do, as Landlock can say it.
#[derive(Default)]
pub struct FileRules {
    pub landlock: u8,
    /// `None`: files are not restricted.
    pub files: Option<AllowedPaths>,
    pub deny_tcp: bool,
}

#[derive(Default)]
pub struct AllowedPaths {
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
}

impl FileRules {
    pub fn of(orders: &Orders, placed: &Placed) -> Self {
        let files = (orders.files == FileAccess::WorkFolder).then(|| {
            let mut read: Vec<PathBuf> =
                [PROGRAMS, SETTINGS, KERNEL].into_iter().flatten().map(PathBuf::from).collect();
            read.extend(orders.contain.private_proc.then(|| "/proc".into()));
            read.extend(orders.readable.iter().cloned());
            AllowedPaths { read, write: vec![placed.cwd.clone(), placed.tmp.clone()] }
        });
        Self { landlock: orders.contain.landlock, files, deny_tcp: orders.network == NetworkAccess::Off }
    }

    /// Restricts this process and all it starts. Everything asked for is in force afterwards, or it is an error.
    pub fn apply(&self) -> Result<(), String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let abi = abi(self.landlock).ok_or("the kernel has no Landlock")?;
        let deny_tcp = self.deny_tcp && self.landlock >= LANDLOCK_TCP;
        let scope = self.landlock >= LANDLOCK_SIGNALS;
        if self.files.is_none() && !deny_tcp && !scope {
            return Ok(());
        }
        let mut rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        if self.files.is_some() {
            rules = rules.handle_access(AccessFs::from_all(abi)).map_err(|e| said(&e))?;
        }
        if deny_tcp {
            rules = rules.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp).map_err(|e| said(&e))?;
        }
        if scope {
            // Also without other rules: it makes a domain, and processes outside of one cannot be traced or read.
            rules = rules.scope(Scope::AbstractUnixSocket | Scope::Signal).map_err(|e| said(&e))?;
        }
        let mut rules = rules.create().map_err(|e| said(&e))?;
        if let Some(allowed) = &self.files {
            let all = AccessFs::from_all(abi);
            rules = rules
                .add_rules(path_beneath_rules(&allowed.read, AccessFs::from_read(abi)))
                .and_then(|rules| rules.add_rules(path_beneath_rules(DEVICES, all)))
                .map_err(|e| said(&e))?;
            for folder in &allowed.write {
                let opened = PathFd::new(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
                rules = rules.add_rule(PathBeneath::new(opened, all)).map_err(|e| said(&e))?;
            }
        }
        let status = rules.restrict_self().map_err(|e| said(&e))?;
        match status.ruleset {
            RulesetStatus::FullyEnforced => Ok(()),
            other => Err(format!("Landlock enforces only a part: {other:?}")),
        }
    }
}

/// Versions from the newest we know.
pub const LANDLOCK_VERSIONS: [u8; 7] = [7, 6, 5, 4, 3, 2, 1];

fn abi(version: u8) -> Option<ABI> {
    Some(match version {
        0 => return None,
        1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        5 => ABI::V5,
        6 => ABI::V6,
        _ => ABI::V7,
    })
}

//! What this machine offers to contain a command, which level that makes, and which of it one command gets.
//!
//! A level is a promise about all commands. A feature that no level needs is used where it is available.

use crate::command::{Command, FileAccess, NetworkAccess};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How well commands are contained. Ordered: each level has what the one before has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IsolationLevel {
    /// No command runs.
    None,
    /// Processes are supervised, limited and killed. A hostile command can read the engine's files, and can signal
    /// the engine and its own supervisor.
    Supervised,
    /// Also: dangerous system calls, files outside of the work folder, sockets and signals to other processes are
    /// refused by the kernel.
    Restricted,
    /// Also: in its own process, network and mount namespaces. The end of the first process kills all others at once,
    /// and other processes are not visible.
    Isolated,
}

impl IsolationLevel {
    pub const ALL: [IsolationLevel; 4] =
        [IsolationLevel::None, IsolationLevel::Supervised, IsolationLevel::Restricted, IsolationLevel::Isolated];

    pub fn word(self) -> &'static str {
        match self {
            IsolationLevel::None => "none",
            IsolationLevel::Supervised => "supervised",
            IsolationLevel::Restricted => "restricted",
            IsolationLevel::Isolated => "isolated",
        }
    }

    pub fn parse(word: &str) -> Option<IsolationLevel> {
        Self::ALL.into_iter().find(|level| level.word() == word)
    }

    fn needs(self) -> &'static [FeatureName] {
        use FeatureName::*;
        match self {
            IsolationLevel::None => &[],
            IsolationLevel::Supervised => &[Supervision, NoNewPrivileges, HiddenMemory],
            IsolationLevel::Restricted => &[SystemCallFilter, FileRules, SignalConfinement],
            IsolationLevel::Isolated => &[ProcessNamespace, NetworkNamespace, MountNamespace],
        }
    }
}

impl fmt::Display for IsolationLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureName {
    /// A subreaper that finds every descendant and kills it by its process descriptor.
    Supervision,
    NoNewPrivileges,
    /// The memory of a process that is not dumpable cannot be read by another one of its user.
    HiddenMemory,
    /// seccomp: a list of system calls that are refused, and sockets.
    SystemCallFilter,
    /// Landlock for files.
    FileRules,
    /// Landlock for TCP: a second wall behind the refused sockets.
    TcpRules,
    /// Landlock for signals and abstract Unix sockets.
    SignalScope,
    /// Namespaces without privileges. Root with `CAP_SYS_ADMIN` does not need it.
    UserNamespace,
    ProcessNamespace,
    NetworkNamespace,
    /// Protected paths are covered by empty folders.
    MountNamespace,
    /// `/proc` shows the processes of the command only.
    PrivateProc,
    /// As root: each command gets a user id of its own.
    OwnUser,
    /// The kernel refuses processes beyond the limit. Without it, the supervisor kills the command.
    ProcessLimit,
    /// A command cannot signal the engine: by any of its namespace, its own user, or Landlock.
    SignalConfinement,
}

impl FeatureName {
    /// In the order they are tried; [`FeatureName::SignalConfinement`] follows from others.
    pub(crate) const TRIED: [FeatureName; 14] = {
        use FeatureName::*;
        [
            Supervision,
            NoNewPrivileges,
            HiddenMemory,
            SystemCallFilter,
            FileRules,
            TcpRules,
            SignalScope,
            UserNamespace,
            ProcessNamespace,
            NetworkNamespace,
            MountNamespace,
            PrivateProc,
            OwnUser,
            ProcessLimit,
        ]
    };

    pub fn word(self) -> &'static str {
        use FeatureName::*;
        match self {
            Supervision => "supervision",
            NoNewPrivileges => "no_new_privileges",
            HiddenMemory => "hidden_memory",
            SystemCallFilter => "system_call_filter",
            FileRules => "file_rules",
            TcpRules => "tcp_rules",
            SignalScope => "signal_scope",
            UserNamespace => "user_namespace",
            ProcessNamespace => "process_namespace",
            NetworkNamespace => "network_namespace",
            MountNamespace => "mount_namespace",
            PrivateProc => "private_proc",
            OwnUser => "own_user",
            ProcessLimit => "process_limit",
            SignalConfinement => "signal_confinement",
        }
    }
}

/// One feature, as it was when it was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    pub name: FeatureName,
    pub available: bool,
    /// What was found, or why it is missing.
    pub why: String,
}

/// The result of [`probe`](crate::probe): for `GET /version` and the log of the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IsolationReport {
    pub level: IsolationLevel,
    pub features: Vec<Feature>,
    #[serde(skip)]
    pub(crate) found: Containment,
}

/// What one command gets, or what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Containment {
    pub no_new_privileges: bool,
    pub system_call_filter: bool,
    /// The newest version of Landlock's interface that works; 0 without.
    pub landlock: u8,
    /// Landlock confines signals.
    pub signal_scope: bool,
    /// Namespaces are made inside of a user namespace.
    pub user_namespace: bool,
    pub process_namespace: bool,
    pub network_namespace: bool,
    pub mount_namespace: bool,
    pub private_proc: bool,
    pub own_user: bool,
    pub process_count: ProcessCount,
}

/// What the kernel counts when it compares with the limit of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessCount {
    /// It does not compare: the user is root.
    #[default]
    Unlimited,
    /// All processes of the engine's user, those of the engine included.
    EngineUser,
    /// The processes of the command.
    Command,
}

/// Versions of Landlock's interface that brought TCP, and signals.
pub(crate) const LANDLOCK_TCP: u8 = 4;
pub(crate) const LANDLOCK_SIGNALS: u8 = 6;

impl IsolationReport {
    pub(crate) fn new(mut features: Vec<Feature>, found: Containment) -> Self {
        features.push(found.signal_confinement());
        let level = level_of(&features);
        Self { level, features, found }
    }

    pub fn feature(&self, name: FeatureName) -> Option<&Feature> {
        self.features.iter().find(|feature| feature.name == name)
    }

    /// Features that the next level needs and that are missing.
    pub fn missing_for(&self, level: IsolationLevel) -> Vec<&Feature> {
        let needed = |name: FeatureName| IsolationLevel::ALL.iter().any(|l| *l <= level && l.needs().contains(&name));
        self.features.iter().filter(|feature| needed(feature.name) && !feature.available).collect()
    }

    /// What a command gets, and the level that makes. An error says what it asks for and this machine does not have.
    pub(crate) fn contain(
        &self,
        command: &Command,
        required: IsolationLevel,
    ) -> Result<(Containment, IsolationLevel), String> {
        let mut contain = self.found;
        // A given folder, and files anywhere, belong to the engine's user: another one could not write them.
        contain.own_user &= command.folder.is_none() && command.files == FileAccess::WorkFolder;
        if self.found.own_user && !contain.own_user {
            contain.process_count = ProcessCount::Unlimited;
        }
        let mut features = self.features.clone();
        features.retain(|feature| feature.name != FeatureName::SignalConfinement);
        let isolation = IsolationReport::new(features, contain);
        if isolation.level < required.max(IsolationLevel::Supervised) {
            let required = required.max(IsolationLevel::Supervised);
            let missing: Vec<_> = isolation
                .missing_for(required)
                .iter()
                .map(|feature| format!("`{}` ({})", feature.name.word(), feature.why))
                .collect();
            return Err(format!(
                "isolation level `{required}` is required, this machine offers `{}` for this command; missing: {}",
                isolation.level,
                missing.join(", ")
            ));
        }
        if command.files == FileAccess::WorkFolder && contain.landlock == 0 {
            return Err("files outside of the work folder cannot be protected: `file_rules` is missing".into());
        }
        if command.network == NetworkAccess::Off && !contain.system_call_filter {
            return Err("the network cannot be turned off: `system_call_filter` is missing".into());
        }
        contain.network_namespace &= command.network == NetworkAccess::Off;
        Ok((contain, isolation.level))
    }
}

impl fmt::Display for IsolationReport {
    /// One line for the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "level {}", self.level)?;
        for feature in &self.features {
            let mark = if feature.available { "+" } else { "-" };
            write!(f, ", {mark}{} ({})", feature.name.word(), feature.why)?;
        }
        Ok(())
    }
}

impl Containment {
    fn signal_confinement(&self) -> Feature {
        let by = match self {
            Self { process_namespace: true, .. } => Some("by its process namespace"),
            Self { signal_scope: true, .. } => Some("by Landlock"),
            Self { own_user: true, .. } => Some("by its own user"),
            _ => None,
        };
        Feature {
            name: FeatureName::SignalConfinement,
            available: by.is_some(),
            why: by
                .unwrap_or("needs a process namespace, Linux 6.12 with Landlock, or root in a private folder")
                .into(),
        }
    }
}

fn level_of(features: &[Feature]) -> IsolationLevel {
    let has = |name: &FeatureName| features.iter().any(|feature| feature.name == *name && feature.available);
    IsolationLevel::ALL
        .into_iter()
        .take_while(|level| level.needs().iter().all(has))
        .last()
        .unwrap_or(IsolationLevel::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn isolation(missing: &[FeatureName], found: Containment) -> IsolationReport {
        let feature = |name| Feature { name, available: !missing.contains(&name), why: "tried".into() };
        IsolationReport::new(FeatureName::TRIED.into_iter().map(feature).collect(), found)
    }

    fn all() -> Containment {
        Containment {
            no_new_privileges: true,
            system_call_filter: true,
            landlock: LANDLOCK_SIGNALS,
            signal_scope: true,
            user_namespace: false,
            process_namespace: true,
            network_namespace: true,
            mount_namespace: true,
            private_proc: true,
            own_user: true,
            process_count: ProcessCount::Command,
        }
    }

    #[test]
    fn a_level_needs_all_of_the_levels_before() {
        use FeatureName::*;
        let without_namespace = Containment { process_namespace: false, ..all() };
        for (missing, found, expected) in [
            (&[][..], all(), IsolationLevel::Isolated),
            (
                &[OwnUser, PrivateProc, ProcessLimit, TcpRules],
                Containment { own_user: false, ..all() },
                IsolationLevel::Isolated,
            ),
            (&[ProcessNamespace], without_namespace, IsolationLevel::Restricted),
            (&[FileRules], Containment { landlock: 0, signal_scope: false, ..all() }, IsolationLevel::Supervised),
            (&[NoNewPrivileges], all(), IsolationLevel::None),
        ] {
            assert_eq!(isolation(missing, found).level, expected, "{missing:?}");
        }
    }

    #[test]
    fn a_command_that_cannot_be_contained_as_asked_is_refused() {
        use FeatureName::*;
        let old = Containment { landlock: 0, process_namespace: false, system_call_filter: false, ..all() };
        let old = isolation(&[FileRules, SystemCallFilter, ProcessNamespace], old);
        assert_eq!(old.level, IsolationLevel::Supervised);
        let strict = Command::new("true");
        assert!(old.contain(&strict, IsolationLevel::Restricted).unwrap_err().contains("`file_rules` (tried)"));
        assert!(old.contain(&strict, IsolationLevel::None).unwrap_err().contains("`file_rules` is missing"));
        let files = Command { files: FileAccess::Anywhere, ..strict };
        assert!(old.contain(&files, IsolationLevel::None).unwrap_err().contains("network cannot be turned off"));
        let all_allowed = Command { network: NetworkAccess::On, ..files };
        old.contain(&all_allowed, IsolationLevel::None).unwrap();
    }

    #[test]
    fn the_level_of_a_command_counts_what_it_gets() {
        // Signals are confined by the user alone, which a command in a given folder does not get.
        let found = Containment { landlock: 1, signal_scope: false, process_namespace: false, ..all() };
        let isolation = isolation(&[FeatureName::ProcessNamespace], found);
        assert_eq!(isolation.level, IsolationLevel::Restricted);
        let private = Command::new("true");
        assert!(isolation.contain(&private, IsolationLevel::Restricted).unwrap().0.own_user);
        let given = Command { folder: Some("/srv/shop".into()), ..private };
        let said = isolation.contain(&given, IsolationLevel::Restricted).unwrap_err();
        assert!(said.contains("offers `supervised`") && said.contains("signal_confinement"), "{said}");
        let (contain, level) = isolation.contain(&given, IsolationLevel::Supervised).unwrap();
        assert_eq!(level, IsolationLevel::Supervised);
        assert_eq!((contain.own_user, contain.process_count), (false, ProcessCount::Unlimited));
    }
}

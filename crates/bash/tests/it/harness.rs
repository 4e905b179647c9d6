//! Every test runs at every level that this machine can show, and prints them (`cargo test -- --nocapture`).

use bash::{
    Command, EndReason, Error, FileAccess, Finished, IsolationLevel, IsolationReport, NetworkAccess, Program, Sandbox,
};
use std::collections::HashMap;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const HELPER: &str = env!("CARGO_BIN_EXE_onward-bash-helper");

/// What the supervisor runs with, see the helper's options.
const VARIANTS: &[(&str, &[&str], bool)] = &[
    ("as it is", &[], false),
    ("container", &["--no-namespaces"], false),
    ("container without a filter", &["--no-admin"], true),
    ("unprivileged", &["--user"], true),
    ("unprivileged in a container", &["--no-namespaces", "--user"], true),
    ("old kernel", &["--no-namespaces", "--no-landlock", "--no-seccomp"], false),
    ("unprivileged on an old kernel", &["--no-namespaces", "--no-landlock", "--no-seccomp", "--user"], true),
];

/// One variant with folders of its own.
pub struct Setting {
    test: &'static str,
    variant: &'static str,
    pub options: &'static [&'static str],
    pub isolation: IsolationReport,
    pub folder: TempDir,
}

/// Calls the test for every variant, one after the other.
pub fn at_every_level(name: &'static str, test: impl Fn(&Setting)) {
    settings(name).iter().for_each(test);
}

/// All variants at the same time, for tests that mostly wait.
pub fn at_every_level_at_once(name: &'static str, test: impl Fn(&Setting) + Sync) {
    let settings = settings(name);
    std::thread::scope(|scope| {
        settings.iter().for_each(|setting| drop(scope.spawn(|| test(setting))));
    });
}

fn settings(test: &'static str) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (variant, options, needs_root) in VARIANTS {
        if *needs_root && !is_root() {
            println!("{test}: {variant}: not tried, needs root");
            continue;
        }
        let isolation = isolation(options);
        let folder = tempfile::Builder::new().prefix("onward-bash-").tempdir().unwrap();
        // Commands run as other users, too.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let setting = Setting { test, variant, options, isolation, folder };
        setting.say(format!("level {}", setting.level()));
        settings.push(setting);
    }
    settings
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn program(options: &[&str]) -> Program {
    options.iter().fold(Program::at(HELPER), |program, option| program.argument(*option))
}

fn isolation(options: &'static [&'static str]) -> IsolationReport {
    static PROBED: Mutex<Option<HashMap<&[&str], IsolationReport>>> = Mutex::new(None);
    let mut probed = PROBED.lock().unwrap();
    let probed = probed.get_or_insert_default();
    probed.entry(options).or_insert_with(|| bash::probe(&program(options)).unwrap()).clone()
}

impl Setting {
    /// In the output of the test, with the variant.
    pub fn say(&self, what: impl std::fmt::Display) {
        println!("{}: {}: {what}", self.test, self.variant);
    }

    pub fn level(&self) -> IsolationLevel {
        self.isolation.level
    }

    pub fn is_restricted(&self) -> bool {
        self.level() >= IsolationLevel::Restricted
    }

    pub fn has(&self, feature: bash::FeatureName) -> bool {
        self.isolation.feature(feature).is_some_and(|feature| feature.available)
    }

    pub fn scratch(&self) -> PathBuf {
        self.folder.path().join("scratch")
    }

    pub fn sandbox(&self) -> Sandbox {
        Sandbox::new(program(self.options), self.isolation.clone(), IsolationLevel::Supervised, self.scratch())
    }

    /// As strict as this level can be.
    pub fn command(&self, text: impl Into<String>) -> Command {
        let command = Command::new(text).timeout(Duration::from_secs(30));
        match self.is_restricted() {
            true => command,
            false => all_allowed(command),
        }
    }

    pub fn run(&self, command: Command) -> Finished {
        self.try_run(command).unwrap()
    }

    pub fn try_run(&self, command: Command) -> Result<Finished, Error> {
        let done = block_on(self.sandbox().run(command, std::future::pending()));
        self.assert_clean();
        done
    }

    pub fn stdout(&self, text: impl Into<String>) -> String {
        let finished = self.run(self.command(text));
        assert_eq!(finished.ended, EndReason::Exited, "{finished:?}");
        assert_eq!(finished.stderr, "", "{finished:?}");
        finished.stdout
    }

    /// A folder that everyone may write.
    pub fn new_folder(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        path
    }

    pub fn private_folders(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.scratch()).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// No private folder is left. A supervisor whose engine does not listen any more may still be at it.
    pub fn assert_clean(&self) {
        eventually("private folders are deleted", || self.private_folders().is_empty());
    }
}

pub fn all_allowed(mut command: Command) -> Command {
    (command.files, command.network) = (FileAccess::Anywhere, NetworkAccess::On);
    command
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(future)
}

/// Looks until it is true.
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < deadline, "not within 20 seconds: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An argument that marks the processes of one test: a number of seconds for `sleep`, between 300 and 400.
pub struct Mark(pub String);

impl Mark {
    pub fn new() -> Self {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
        Self(format!("3{:02}.{:016}", bytes[0] % 100, u64::from_ne_bytes(bytes) % 10_000_000_000_000_000))
    }

    /// Processes that have it as an argument, in whatever namespace.
    fn processes(&self) -> impl Iterator<Item = i32> {
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).any(|one| one == self.0.as_bytes())
        })
    }

    pub fn count(&self) -> usize {
        self.processes().count()
    }

    pub fn any(&self) -> i32 {
        let mut found = None;
        eventually("a marked process runs", || {
            found = self.processes().next();
            found.is_some()
        });
        found.unwrap()
    }

    /// Kills processes that have it in an argument or a variable, and says how many there were.
    pub fn kill(&self) -> usize {
        let mut killed = 0;
        for pid in
            std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        {
            let has_mark = |file| {
                let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                text.windows(self.0.len()).any(|part| part == self.0.as_bytes())
            };
            if has_mark("cmdline") || has_mark("environ") {
                killed += 1;
                let _ = rustix::process::kill_process(
                    rustix::process::Pid::from_raw(pid).unwrap(),
                    rustix::process::Signal::KILL,
                );
            }
        }
        killed
    }

    pub fn assert_gone(&self) {
        assert_eq!(self.count(), 0, "processes are left");
    }
}

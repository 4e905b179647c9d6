//! A server on a disk that fails on demand.

use crate::harness::Server;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const POWER_LOG: &str = "power.log";

/// Flags of the shim, see `shim.c`.
pub struct Disk {
    control: TempDir,
}

impl Disk {
    /// A disk that works, and a server on it.
    pub fn with_server(flags: &[&str]) -> (Disk, Server) {
        Disk::with_environment(flags, |_| Vec::new())
    }

    /// A disk whose power can be cut, and a server that copies its log into the database often.
    pub fn with_power_cuts(flags: &[&str]) -> (Disk, Server) {
        Disk::with_environment(flags, |control| {
            let log = control.join(POWER_LOG).to_str().expect("UTF-8").to_owned();
            // Arming any crash point, also one that does not exist, makes checkpoints more frequent.
            vec![("ONWARD_FAULT_POWER", log), ("ONWARD_CRASH", "none:1".to_owned())]
        })
    }

    /// What the server has written to the disk since the log was last removed.
    pub fn power_log(&self) -> PathBuf {
        self.control.path().join(POWER_LOG)
    }

    fn with_environment(flags: &[&str], more: impl FnOnce(&Path) -> Vec<(&'static str, String)>) -> (Disk, Server) {
        let (control, data) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
        // `/proc` shows open files by their real paths.
        let real = |path: &Path| path.canonicalize().expect("a path").to_str().expect("UTF-8").to_owned();
        let mut environment = vec![
            ("LD_PRELOAD", compile(control.path())),
            ("ONWARD_FAULT_DATA", real(data.path())),
            ("ONWARD_FAULT_CONTROL", real(control.path())),
        ];
        environment.extend(more(control.path()));
        let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let server = Server::with_environment(flags, data, &environment);
        (Disk { control }, server)
    }

    /// Sets a fault from now on.
    pub fn set(&self, flag: &str, number: u32) {
        // Written and renamed, so that the shim never reads half of it.
        let aside = self.control.path().join("aside");
        std::fs::write(&aside, number.to_string()).expect("a file");
        std::fs::rename(aside, self.control.path().join(flag)).expect("a file");
    }

    pub fn clear(&self, flag: &str) {
        std::fs::remove_file(self.control.path().join(flag)).expect("it was set");
    }
}

fn compile(folder: &Path) -> String {
    let library = folder.join("shim.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/faults/shim.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(source).arg("-ldl");
    let output = cc.output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library.to_str().expect("UTF-8").to_owned()
}

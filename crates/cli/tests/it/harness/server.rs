//! The server process under test. It is killed when its handle is dropped, also when the test panics. Each time it is
//! killed, its store is verified.

use super::{Api, WAIT_MAX, place};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_onward");

/// A server that is ready: one process, or one for each node. Requests go through its [`Api`].
pub struct Server {
    nodes: Vec<Starting>,
    api: Api,
    data: TempDir,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    /// How many processes it has while it runs.
    size: usize,
    /// The program that it runs.
    binary: String,
}

impl Deref for Server {
    type Target = Api;
    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Server {
    pub fn start() -> Server {
        Server::with(&[])
    }

    pub fn with_virtual_clock() -> Server {
        Server::with(&["--clock", "virtual"])
    }

    /// On the test's own database.
    pub fn on(url: &str) -> Server {
        let data = TempDir::new().expect("a folder for the data");
        place::put(data.path(), url);
        Server::with_environment(&[], data, &[])
    }

    /// The same, with one process.
    pub fn alone_on(url: &str) -> Server {
        Server::nodes_on(1, url)
    }

    /// The same, with this many processes.
    pub fn nodes_on(size: usize, url: &str) -> Server {
        let data = TempDir::new().expect("a folder for the data");
        place::put(data.path(), url);
        Server::of(size, &[], data, &[])
    }

    /// Kills one of several processes for good. Requests go to the others from now on.
    pub fn lose(&mut self, number: usize) {
        self.nodes.remove(number).kill();
        self.api = self.api.without(number);
    }

    /// Kills one of several processes and starts it again at the same address.
    pub fn restart_one(&mut self, number: usize) {
        self.restart_one_with(number, &[]);
    }

    /// The same, with more environment variables.
    pub fn restart_one_with(&mut self, number: usize, more: &[(String, String)]) {
        let environment = [&self.environment, more].concat();
        let address = self.api.nodes()[number];
        self.nodes[number].kill();
        let flags = [&self.flags[..], &["--listen".to_owned(), address.to_string()]].concat();
        self.nodes[number] = Starting::node(&self.binary, number, self.data.path(), &flags, &environment, true);
        assert_eq!(self.nodes[number].ready(), Some(address), "{}", self.log());
    }

    /// The signal that ended one of several processes, once it has ended.
    pub fn signal_that_ended(&mut self, number: usize) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        self.nodes[number].child.try_wait().expect("a child").and_then(|status| status.signal())
    }

    /// Sends SIGSTOP or SIGCONT to one of several processes.
    pub fn signal_one(&self, number: usize, name: &str) {
        let signal = format!("kill -{name} {}", self.nodes[number].child.id());
        assert!(Command::new("sh").args(["-c", &signal]).status().expect("sh").success());
    }

    pub fn with(flags: &[&str]) -> Server {
        Server::with_environment(flags, TempDir::new().expect("a folder for the data"), &[])
    }

    /// One process, whatever `ONWARD_TEST_NODES` says: for what each process has for itself, such as its connection
    /// limit and its host names.
    pub fn alone(flags: &[&str]) -> Server {
        Server::of(1, flags, TempDir::new().expect("a folder for the data"), &[])
    }

    /// On data that an earlier server may have written, with more environment variables.
    pub fn with_environment(flags: &[&str], data: TempDir, environment: &[(&str, &str)]) -> Server {
        Server::of(place::nodes(), flags, data, environment)
    }

    /// One process of another release.
    pub fn of_release(binary: &str, flags: &[&str], data: TempDir) -> Server {
        Server::of_binary(binary, 1, flags, data, &[])
    }

    /// Kills the server, which may be of another release, and starts this release on the same data.
    pub fn upgrade(&mut self) {
        self.kill_at_once();
        self.binary = BINARY.to_owned();
        self.start_again();
    }

    fn of(size: usize, flags: &[&str], data: TempDir, environment: &[(&str, &str)]) -> Server {
        Server::of_binary(BINARY, size, flags, data, environment)
    }

    fn of_binary(binary: &str, size: usize, flags: &[&str], data: TempDir, environment: &[(&str, &str)]) -> Server {
        let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
        let environment: Vec<(String, String)> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 9));
        let mut server = Server {
            nodes: Vec::new(),
            api: Api::new(&[nowhere]),
            data,
            flags,
            environment,
            size,
            binary: binary.to_owned(),
        };
        assert!(server.start_with(&[]), "not ready: {}", server.log());
        server
    }

    /// Kills the server with SIGKILL and starts it again on the same data.
    pub fn crash_and_restart(&mut self) {
        self.kill();
        self.start_again();
    }

    pub fn start_again(&mut self) {
        assert!(self.start_with(&[]), "not ready: {}", self.log());
    }

    /// Starts on the same data with more environment variables. Returns false if it ended before it was ready.
    pub fn start_with(&mut self, more: &[(String, String)]) -> bool {
        let environment = [&self.environment, more].concat();
        self.nodes.clear();
        let mut addresses = Vec::new();
        for number in 0..self.size {
            let mut flags = self.flags.clone();
            // The first process makes the secret that all share, and callbacks go to its address.
            if let Some(first) = addresses.first()
                && !flags.iter().any(|flag| flag == "--public-url")
            {
                flags.extend(["--public-url".to_owned(), format!("http://{first}")]);
            }
            let is_first = number == 0;
            self.nodes.push(Starting::node(&self.binary, number, self.data.path(), &flags, &environment, is_first));
            match self.nodes[number].ready() {
                Some(address) => addresses.push(address),
                None => return false,
            }
        }
        self.api = Api::new(&addresses);
        true
    }

    pub fn kill(&mut self) {
        self.kill_at_once();
        self.verify();
    }

    /// Kills the server and does not verify its store.
    pub fn kill_at_once(&mut self) {
        self.nodes.iter_mut().for_each(Starting::kill);
    }

    /// Runs `onward verify` on the store.
    pub fn verify(&self) {
        let mut command = Command::new(BINARY);
        command.args(["verify", "--data"]).arg(self.data.path()).envs(place::environment(self.data.path()));
        let output = command.output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    }

    /// Starts on the same data and is killed after this time, perhaps before it is ready.
    pub fn spawn_and_kill(&mut self, after: std::time::Duration) {
        self.nodes = vec![Starting::with(self.data.path(), &self.flags, &self.environment)];
        let _ = self.nodes[0].ready.recv_timeout(after);
        self.kill();
    }

    /// Starts another process on the same data, which must end by itself.
    pub fn beside(&self, flags: &[&str]) -> Output {
        let data = self.data.path().to_str().expect("a plain path");
        let arguments = [&["dev", "--listen", "127.0.0.1:0", "--data", data], flags].concat();
        run_to_end(Command::new(BINARY).envs(place::environment(self.data.path())), &arguments, "")
    }

    /// Sends SIGTERM and returns how the process ended.
    pub fn terminate(&mut self) -> ExitStatus {
        self.ask_to_stop();
        self.ended()
    }

    pub fn ask_to_stop(&self) {
        self.signal("TERM");
    }

    /// Stops the process for a while with SIGSTOP, as if the machine had slept or been overloaded.
    pub fn pause(&self, pause: std::time::Duration) {
        self.signal("STOP");
        std::thread::sleep(pause);
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let pids: Vec<String> = self.nodes.iter().map(|node| node.child.id().to_string()).collect();
        let signal = format!("kill -{name} {}", pids.join(" "));
        assert!(Command::new("sh").args(["-c", &signal]).status().expect("sh").success());
    }

    /// The process id of the first process.
    pub fn pid(&self) -> u32 {
        self.nodes[0].child.id()
    }

    pub fn ended(&mut self) -> ExitStatus {
        let status = super::eventually("the server ends", || self.has_ended());
        self.verify();
        status
    }

    /// How it ended, once all of its processes have ended: the worst exit status of all.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        let ends: Option<Vec<ExitStatus>> =
            self.nodes.iter_mut().map(|node| node.child.try_wait().expect("a child")).collect();
        ends?.into_iter().max_by_key(|status| !status.success())
    }

    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// What the server has logged since its last start.
    pub fn log(&self) -> String {
        self.nodes.iter().map(Starting::log).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.verify();
            self.kill();
        }
        self.kill_at_once();
        place::remove(self.data.path());
    }
}

/// A server that was spawned and may not be ready yet.
pub struct Starting {
    child: Child,
    ready: mpsc::Receiver<String>,
    log: Arc<Mutex<String>>,
}

impl Starting {
    pub fn new(data: &Path, flags: &[String]) -> Starting {
        Starting::with(data, flags, &[])
    }

    pub fn with(data: &Path, flags: &[String], environment: &[(String, String)]) -> Starting {
        Starting::node(BINARY, 0, data, flags, environment, true)
    }

    /// One of several processes on the same data. Each has its own folder, and the secret of the first. Only the first
    /// can have the port that the flags name.
    fn node(
        binary: &str,
        number: usize,
        data: &Path,
        flags: &[String],
        environment: &[(String, String)],
        has_given_port: bool,
    ) -> Starting {
        let mut command = Command::new(binary);
        command.arg("dev").envs(place::environment(data)).envs(environment.iter().cloned());
        if number == 0 {
            command.arg("--data").arg(data);
        } else {
            command.arg("--data").arg(data.join(format!("node-{number}")));
            command.arg("--secret-key-file").arg(data.join("secret.key"));
            // The first process has moved the clock that all share.
            command.env_remove("ONWARD_CLOCK_ADVANCE");
        }
        let listen_flag = flags.iter().position(|flag| flag == "--listen");
        match listen_flag.filter(|_| !has_given_port) {
            Some(at) => drop(command.args(&flags[..at]).args(&flags[at + 2..])),
            None => drop(command.args(flags)),
        }
        if listen_flag.is_none() || !has_given_port {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        Starting::spawn(command, data)
    }

    /// Starts `onward serve`.
    pub fn serving(data: &Path, flags: &[&str], environment: &[(&str, &str)]) -> Starting {
        let mut command = Command::new(BINARY);
        command.arg("serve").args(flags).arg("--data").arg(data).env_remove("ONWARD_ADMIN_KEY");
        command.envs(place::environment(data)).envs(environment.iter().copied());
        Starting::spawn(command, data)
    }

    fn spawn(mut command: Command, data: &Path) -> Starting {
        // A process that aborts may leave a core file in its working directory.
        command.current_dir(data);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let (send, ready) = mpsc::channel();
        let stdout = child.stdout.take().expect("piped");
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, kept) = (child.stderr.take().expect("piped"), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = kept.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Starting { child, ready, log }
    }

    /// The address of the ready line; `None` if the process ended without one.
    pub fn ready(&mut self) -> Option<SocketAddr> {
        let line = match self.ready.recv_timeout(WAIT_MAX) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("not ready after {WAIT_MAX:?}: {}", self.log()),
        };
        let address = line.strip_prefix("onward ready http://").unwrap_or_else(|| panic!("unexpected line: {line}"));
        Some(address.parse().expect("an address"))
    }

    /// The signal that ended the process.
    pub fn ended(&mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        super::eventually("the process ends", || self.child.try_wait().expect("a child")).signal()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            eprintln!("--- the server's last words ---");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Runs the binary to its end.
pub fn onward(arguments: &[&str]) -> Output {
    onward_with_input(arguments, "")
}

pub fn onward_with_input(arguments: &[&str], input: &str) -> Output {
    run_to_end(&mut Command::new(BINARY), arguments, input)
}

fn run_to_end(command: &mut Command, arguments: &[&str], input: &str) -> Output {
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // They are read while it runs, because it waits when a pipe is full.
    let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let [out, err] = [Box::new(out) as Box<dyn Read + Send>, Box::new(err)].map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).expect("its output");
            bytes
        })
    });
    // The process may end without reading its input.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let until = Instant::now() + WAIT_MAX;
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None if Instant::now() > until => {
                let _ = child.kill();
                panic!("`onward {}` does not end", arguments.join(" "));
            }
            None => std::thread::sleep(std::time::Duration::from_millis(2)),
        }
    };
    Output { status, stdout: out.join().expect("it was read"), stderr: err.join().expect("it was read") }
}

//! However it ends, nothing is left.

use crate::harness::{HELPER, Mark, Setting, at_every_level, at_every_level_at_once, block_on, eventually};
use bash::{Command, EndReason, Error, FeatureName};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Processes that try to stay: in the background, in their own session, forked twice, and deaf to signals.
fn survivors(mark: &Mark, then: &str) -> String {
    let Mark(seconds) = mark;
    format!(
        "trap '' TERM HUP INT
         export TMPDIR=$TMPDIR S='touch $TMPDIR/up-$RANDOM$BASHPID; exec sleep {seconds}'
         bash -c \"$S\" &
         setsid bash -c \"$S\" &
         (setsid bash -c 'bash -c \"$S\" & disown; setsid bash -c \"$S\" &' &)
         (nohup setsid bash -c 'trap \"\" TERM; while :; do (eval \"$S\"); done' > /dev/null 2>&1 &)
         (set -m; setsid -f bash -c \"$S\" < /dev/null > /dev/null 2>&1)
         until [ $(ls $TMPDIR | wc -l) -ge {SURVIVORS} ]; do sleep 0.01; done
         echo started
         {then}"
    )
}

const SURVIVORS: usize = 6;

#[test]
fn what_a_command_leaves_in_the_background_is_killed_with_its_end() {
    at_every_level("background", |setting| {
        let mark = Mark::new();
        let finished = setting.run(setting.command(survivors(&mark, "exit 3")));
        mark.assert_gone();
        assert_eq!((finished.ended, finished.exit_code), (EndReason::Exited, Some(3)), "{finished:?}");
        assert_eq!(finished.stdout, "started\n");
    });
}

#[test]
fn a_timeout_kills_the_tree_within_a_second() {
    at_every_level("timeout", |setting| {
        let mark = Mark::new();
        let command = setting.command(survivors(&mark, &format!("while :; do sleep {}; done", mark.0)));
        let finished = setting.run(command.timeout(Duration::from_secs(2)));
        mark.assert_gone();
        assert_eq!((finished.ended, finished.stdout.as_str()), (EndReason::TimedOut, "started\n"), "{finished:?}");
        assert!((2_000..=3_000).contains(&finished.duration_ms), "{} ms", finished.duration_ms);
        assert_eq!(finished.signal, Some(9));
    });
}

#[test]
fn a_command_can_clean_up_at_a_timeout() {
    at_every_level_at_once("SIGTERM", |setting| {
        let text = "trap 'echo cleaned; exit 5' TERM; echo waiting; while :; do sleep 0.05; done";
        let finished = setting.run(setting.command(text).timeout(Duration::from_secs(1)));
        assert_eq!(finished.stdout, "waiting\ncleaned\n", "{finished:?}");
        assert_eq!((finished.ended, finished.exit_code), (EndReason::TimedOut, Some(5)));
    });
}

#[test]
fn a_command_can_kill_itself_and_not_its_supervisor() {
    at_every_level("suicide", |setting| {
        let finished = setting.run(setting.command("echo a; kill -KILL $$"));
        assert_eq!((finished.ended, finished.exit_code, finished.signal), (EndReason::Killed, None, Some(9)));
        let finished = setting.run(setting.command("kill -SEGV $$"));
        assert_eq!((finished.ended, finished.signal), (EndReason::Killed, Some(11)));
        if setting.is_restricted() {
            let text = "kill -KILL $PPID 2> /dev/null; echo here; exit 4";
            let finished = setting.run(setting.command(text));
            assert_eq!(
                (finished.ended, finished.exit_code, finished.stdout.as_str()),
                (EndReason::Exited, Some(4), "here\n")
            );
        } else {
            setting.say("not tried: at this level a command can kill its engine");
        }
    });
}

/// Runs until the command has started its processes, then does something to the future.
fn start(setting: &Setting, mark: &Mark) -> Command {
    let folder = setting.new_folder("given");
    let text = survivors(mark, &format!("touch started; while :; do sleep {}; done", mark.0));
    Command { folder: Some(folder), ..crate::harness::all_allowed(Command::new(text)) }
}

async fn started(setting: &Setting) {
    while !setting.folder.path().join("given/started").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_cancellation_kills_and_keeps_the_output() {
    at_every_level("cancellation", |setting| {
        let mark = Mark::new();
        let at = Instant::now();
        let finished = block_on(setting.sandbox().run(start(setting, &mark), started(setting))).unwrap();
        mark.assert_gone();
        assert_eq!((finished.ended, finished.stdout.as_str()), (EndReason::Cancelled, "started\n"));
        assert!(at.elapsed() < Duration::from_secs(10));
        setting.assert_clean();
    });
}

#[test]
fn dropping_the_future_kills() {
    at_every_level("drop", |setting| {
        let mark = Mark::new();
        block_on(async {
            let sandbox = setting.sandbox();
            tokio::select! {
                done = sandbox.run(start(setting, &mark), std::future::pending()) => panic!("{done:?}"),
                () = started(setting) => {}
            }
        });
        eventually("all processes are gone", || mark.count() == 0);
        setting.assert_clean();
    });
}

#[test]
fn the_death_of_the_engine_kills() {
    at_every_level("engine killed", |setting| {
        let mark = Mark::new();
        let flag = setting.new_folder("flags").join("started");
        let command = survivors(&mark, &format!("touch {}; while :; do sleep {}; done", flag.display(), mark.0));
        let request =
            serde_json::json!({ "command": command, "scratch": setting.new_folder("scratch"), "all_allowed": true });
        let mut engine = std::process::Command::new(HELPER);
        let engine = engine.args(setting.options).args(["engine", &request.to_string()]).stdout(Stdio::null());
        let mut engine = engine.spawn().unwrap();
        eventually("the command has started", || flag.exists());
        engine.kill().unwrap(); // SIGKILL
        engine.wait().unwrap();
        eventually("all processes are gone", || mark.count() == 0);
        setting.assert_clean();
    });
}

/// The supervisor above the marked processes of a command.
fn supervisor(mark: &Mark) -> Pid {
    let mut pid = mark.any();
    loop {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        if arguments.split(|byte| *byte == 0).any(|one| one == b"supervise") {
            return Pid::from_raw(pid).unwrap();
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        pid = parent.trim().parse().unwrap();
    }
}

#[test]
fn a_supervisor_ignores_sigterm_and_its_death_is_reported() {
    at_every_level("supervisor killed", |setting| {
        let mark = Mark::new();
        let error = block_on(async {
            let kill = async {
                started(setting).await;
                let pid = supervisor(&mark);
                kill_process(pid, Signal::TERM).unwrap();
                kill_process(pid, Signal::KILL).unwrap();
                std::future::pending::<()>().await;
            };
            setting.sandbox().run(start(setting, &mark), kill).await.unwrap_err()
        });
        assert!(matches!(error, Error::Supervisor(_)) && error.may_have_run(), "{error}");
        if setting.has(FeatureName::ProcessNamespace) {
            eventually("all processes are gone", || mark.count() == 0);
        } else {
            setting.say(format!("weaker here: {} processes outlive a supervisor that is killed", mark.count()));
            eventually("the test has killed them", || mark.kill() == 0);
        }
        // Its folder is found at the next start, a minute later at the earliest.
        assert_eq!(bash::remove_leftovers(&setting.scratch()).unwrap(), (0, Vec::new()));
        assert_eq!(setting.private_folders().len(), 1);
    });
}

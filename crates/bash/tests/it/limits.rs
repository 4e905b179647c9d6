//! Memory, processes and files. The bombs are bounded: a test that fails must not take the machine along.

use crate::harness::{Mark, Setting, at_every_level, at_every_level_at_once};
use bash::{Command, EndReason, FeatureName, ResourceLimits};
use std::time::{Duration, Instant};

/// Each process starts two, down to a depth: 8,000 if nothing stops them.
fn bomb(mark: &Mark, and: &str) -> String {
    format!("b() {{ [ $1 = 0 ] || {{ b $(($1 - 1)) & b $(($1 - 1)) & }}; {and} sleep {}; }}; b 12 & wait", mark.0)
}

fn explode(setting: &Setting, command: Command, mark: &Mark) -> usize {
    let limits = ResourceLimits { processes: 64, ..ResourceLimits::default() };
    let command = Command { limits, ..command.timeout(Duration::from_secs(1)) };
    let (finished, most) = std::thread::scope(|scope| {
        let running = scope.spawn(|| setting.run(command));
        let mut most = 0;
        while !running.is_finished() {
            most = most.max(mark.count());
            std::thread::sleep(Duration::from_millis(20));
        }
        (running.join().unwrap(), most)
    });
    mark.assert_gone();
    // Where the kernel refuses to fork, bash may give up by itself.
    assert!(finished.ended != EndReason::Exited || finished.exit_code != Some(0), "{finished:?}");
    // Long before the bomb ends by itself. Not a second: it competes with all other tests, too.
    assert!(finished.duration_ms < 15_000, "{} ms", finished.duration_ms);
    setting.say(format!("at most {most} processes seen; {:?} after {} ms", finished.ended, finished.duration_ms));
    most
}

#[test]
fn a_fork_bomb_is_contained() {
    at_every_level("fork bomb", |setting| {
        let mark = Mark::new();
        let most = explode(setting, setting.command(bomb(&mark, "")), &mark);
        let is_private = setting.is_restricted();
        let is_limited = setting.has(FeatureName::ProcessLimit);
        match is_limited && (is_private || !setting.has(FeatureName::OwnUser)) {
            true => assert!(most <= 64, "{most}"),
            false => setting.say("weaker here: no limit in the kernel, the supervisor kills what it sees"),
        }
    });
}

#[test]
fn a_fork_bomb_in_sessions_of_their_own_is_contained_in_a_given_folder() {
    at_every_level("fork bomb in a given folder", |setting| {
        let mark = Mark::new();
        let mut command = setting.command(bomb(&mark, "exec setsid"));
        if setting.sandbox().check(&Command { folder: Some("/".into()), ..command.clone() }).is_ok() {
            command.folder = Some(setting.new_folder("given"));
        }
        explode(setting, command, &mark);
    });
}

#[test]
fn memory_is_limited_for_each_process() {
    at_every_level("8 GB", |setting| {
        let limits = ResourceLimits { memory_bytes: 256 << 20, ..ResourceLimits::default() };
        let text = "x=$(head -c 8000000000 /dev/zero | tr '\\0' x); echo ${#x} not reached";
        let finished = setting.run(Command { limits, ..setting.command(text) });
        assert!(!finished.stdout.contains("8000000000"), "{finished:?}");
        assert!(!finished.is_success() || finished.stderr.contains("cannot allocate"), "{finished:?}");
    });
}

#[test]
fn memory_is_limited_for_all_processes_together() {
    at_every_level_at_once("memory of many", |setting| {
        let limits = ResourceLimits { memory_bytes: 128 << 20, ..ResourceLimits::default() };
        // Each of eight takes 40 MB, and keeps it.
        let text = "for n in {1..8}; do { x=$(head -c 40000000 /dev/zero | tr '\\0' x); sleep 100; } & done; wait";
        let at = Instant::now();
        let finished = setting.run(Command { limits, ..setting.command(text) });
        assert_eq!(finished.ended, EndReason::MemoryLimit, "{finished:?}");
        assert!(at.elapsed() < Duration::from_secs(25));
    });
}

#[test]
fn files_and_descriptors_are_limited() {
    at_every_level("files", |setting| {
        let limits = ResourceLimits { file_bytes: 1 << 20, open_files: 32, ..ResourceLimits::default() };
        let text = "head -c 3000000 /dev/zero > file; wc -c < file; ulimit -c; ulimit -n; nice";
        let finished = setting.run(Command { limits, ..setting.command(text) });
        assert_eq!(finished.stdout, "1048576\n0\n32\n10\n", "{finished:?}");
    });
}

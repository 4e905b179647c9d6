//! What a command gets, and what comes back.

use crate::harness::{at_every_level, at_every_level_at_once, is_root};
use bash::{Command, EndReason, Error, FeatureName, IsolationLevel, OUTPUT_CHARS_MAX, Sandbox, TRUNCATION_MARKER};
use std::os::fd::AsFd;
use std::time::Duration;

#[test]
fn the_probe_tells_the_levels_apart() {
    at_every_level("probe", |setting| {
        let (isolation, level) = (&setting.isolation, setting.level());
        setting.say(format!("{isolation}"));
        let json = serde_json::to_value(isolation).unwrap();
        assert_eq!(json["level"], level.word());
        assert_eq!(json["features"].as_array().unwrap().len(), isolation.features.len());
        assert!(isolation.features.iter().all(|feature| !feature.why.is_empty()));
        if setting.options.contains(&"--no-namespaces") {
            assert!(level < IsolationLevel::Isolated);
            assert!(!setting.has(FeatureName::ProcessNamespace) && !setting.has(FeatureName::MountNamespace));
        }
        if setting.options.contains(&"--no-landlock") {
            assert_eq!(level, IsolationLevel::Supervised);
            assert!(!setting.has(FeatureName::FileRules) && !setting.has(FeatureName::SystemCallFilter));
        }
        let is_user = setting.options.contains(&"--user") || !is_root();
        assert!(!(is_user && setting.has(FeatureName::OwnUser)));
    });
}

#[test]
fn below_the_required_level_nothing_runs() {
    at_every_level("required level", |setting| {
        let folder = setting.new_folder("given");
        for required in [IsolationLevel::Supervised, IsolationLevel::Restricted, IsolationLevel::Isolated] {
            let program = crate::harness::program(setting.options);
            let sandbox = Sandbox::new(program, setting.isolation.clone(), required, setting.scratch());
            let command = crate::harness::all_allowed(Command::new("touch ran"));
            let command = Command { folder: Some(folder.clone()), ..command };
            let done = crate::harness::block_on(sandbox.run(command, std::future::pending()));
            match done {
                // What a given folder gets can be less than the machine offers, never more.
                Err(error) => {
                    assert_eq!(error.code(), "sandbox_unavailable", "{error}");
                    assert!(error.to_string().contains(&format!("level `{required}` is required")), "{error}");
                    assert!(required > IsolationLevel::Supervised && !folder.join("ran").exists());
                }
                Ok(finished) => {
                    assert!(finished.is_success() && setting.level() >= required, "{finished:?}");
                    std::fs::remove_file(folder.join("ran")).unwrap();
                }
            }
        }
    });
}

#[test]
fn a_command_has_its_folder_and_few_variables() {
    at_every_level("variables", |setting| {
        // Kept from the supervisor on, so that no variable of the engine can be there.
        let finished = setting
            .run(setting.command("env -0 | sort -z | tr '\\0' '\\n'; pwd; ls -A | wc -l; umask").env("A", "ä $(b)\nc"));
        let cwd = finished.cwd.display().to_string();
        let tmp = finished.cwd.with_file_name("tmp").display().to_string();
        let expected = format!(
            "A=ä $(b)\nc\nHOME={cwd}\nLANG=C.UTF-8\nLC_ALL=C.UTF-8\n\
             PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nPWD={cwd}\nSHLVL=0\nTMPDIR={tmp}\n\
             _=/usr/bin/env\n{cwd}\n0\n0022\n"
        );
        assert_eq!(finished.stdout.replace("SHLVL=1", "SHLVL=0"), expected, "{finished:?}");
        assert_eq!((finished.exit_code, finished.signal, finished.ended), (Some(0), None, EndReason::Exited));
        assert_eq!((finished.timeout_ms, finished.left_behind), (30_000, None));
        assert_eq!(finished.level, setting.level());
        assert!(finished.duration_ms < 30_000);
    });
}

#[test]
fn no_profile_is_read_in_a_given_folder() {
    at_every_level("profile", |setting| {
        let folder = setting.new_folder("given");
        for name in [".bashrc", ".bash_profile", ".profile", ".bash_login", ".bash_logout"] {
            std::fs::write(folder.join(name), "echo read").unwrap();
        }
        let command =
            Command { folder: Some(folder.clone()), ..setting.command("pwd; echo out > made; touch $TMPDIR/x") };
        let finished = setting.run(command);
        let folder = folder.canonicalize().unwrap();
        assert_eq!(finished.stdout, format!("{}\n", folder.display()), "{finished:?}");
        assert_eq!((&finished.cwd, finished.stderr.as_str()), (&folder, ""));
        assert_eq!(std::fs::read_to_string(folder.join("made")).unwrap(), "out\n");
    });
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    at_every_level("missing folder", |setting| {
        let file = setting.folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for folder in [setting.folder.path().join("none"), file] {
            let command = Command { folder: Some(folder.clone()), ..setting.command("true") };
            match setting.try_run(command) {
                Err(Error::WorkFolder { path, .. }) => assert_eq!(path, folder),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn input_of_any_size_is_read_or_left() {
    at_every_level("stdin", |setting| {
        let large = vec![b'x'; 3 << 20];
        let finished = setting.run(setting.command("wc -c").stdin(large.clone()));
        assert_eq!(finished.stdout.trim(), "3145728", "{finished:?}");
        for text in
            ["true", "head -c 1 > /dev/null", "exec <&-", "cat > /dev/null & wait; head -c 5 /dev/stdin > /dev/null"]
        {
            let finished = setting.run(setting.command(text).stdin(large.clone()));
            assert!(finished.is_success(), "{text}: {finished:?}");
        }
        assert_eq!(setting.stdout("wc -c < /dev/stdin; cat; [ /dev/stdin -ef /dev/null ] && echo null"), "0\nnull\n");
        let finished = setting.run(setting.command("echo x 2>/dev/null > /dev/fd/0; cat").stdin("kept"));
        assert!(finished.stdout == "kept", "{finished:?}");
    });
}

#[test]
fn no_other_descriptor_is_open() {
    // One that every child of this process gets, as a careless library would leave it.
    let leak = rustix::io::dup(std::io::stderr().as_fd()).unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    at_every_level("descriptors", |setting| {
        let text = "for n in {3..100}; do (exec 2> /dev/null; exec >&$n) && echo open $n; done; true";
        assert_eq!(setting.stdout(text), "");
    });
}

#[test]
fn output_is_cut_with_a_marker_and_is_always_text() {
    at_every_level("output", |setting| {
        let text = "yes ä | tr -d '\\n' | head -c 400000; head -c 100000 /dev/zero | tr '\\0' e >&2";
        let finished = setting.run(setting.command(text));
        let expected = format!("{}{TRUNCATION_MARKER}", "ä".repeat(OUTPUT_CHARS_MAX));
        assert!(finished.stdout == expected && finished.stdout_truncated);
        let expected = format!("{}{TRUNCATION_MARKER}", "e".repeat(OUTPUT_CHARS_MAX));
        assert!(finished.stderr == expected && finished.stderr_truncated);
        let finished =
            setting.run(setting.command("printf 'a\\xffb\\0'; yes | head -n 1; exec >&-; echo x >&2; exit 7"));
        assert_eq!((finished.stdout.as_str(), finished.stdout_truncated), ("a\u{fffd}b\0y\n", false));
        let silent = setting.run(setting.command("exec >&- 2>&-; for n in {1..50}; do (:); done; exit 9"));
        assert_eq!((silent.ended, silent.exit_code), (EndReason::Exited, Some(9)), "{silent:?}");
        assert_eq!((finished.stderr.as_str(), finished.exit_code, finished.ended), ("x\n", Some(7), EndReason::Exited));
    });
}

#[test]
fn endless_output_needs_no_memory_and_does_not_stop_the_command() {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let before = resident();
    at_every_level_at_once("endless output", |setting| {
        let finished = setting.run(setting.command("head -c 500000000 /dev/zero; echo done >&2"));
        assert_eq!((finished.stderr.as_str(), finished.stdout_truncated), ("done\n", true));
        assert!(resident() < before + 128 * 1024, "{before} KiB, then {}", resident());
        let finished = setting.run(setting.command("yes; echo not reached").timeout(Duration::from_secs(3)));
        assert_eq!((finished.ended, finished.stdout_truncated), (EndReason::TimedOut, true));
    });
}

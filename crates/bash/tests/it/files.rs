//! What a command can read and write, and what becomes of its folder.

use crate::harness::{Setting, all_allowed, at_every_level};
use bash::{Command, EndReason, Error, FeatureName, Finished, IsolationLevel, Sandbox};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const SECRET: &str = "the secret of the engine";

/// A data folder that its permissions do not protect: only what is tested here does.
fn data(setting: &Setting) -> PathBuf {
    let data = setting.new_folder("data");
    std::fs::write(data.join("secret"), SECRET).unwrap();
    std::fs::set_permissions(data.join("secret"), PermissionsExt::from_mode(0o666)).unwrap();
    data
}

fn protected(setting: &Setting, data: &Path, command: Command) -> Result<Finished, Error> {
    let sandbox = setting.sandbox().protect(data).protect(setting.folder.path().join("not there"));
    let done = crate::harness::block_on(sandbox.run(command, std::future::pending()));
    setting.assert_clean();
    assert_eq!(std::fs::read_to_string(data.join("secret")).unwrap(), SECRET);
    done
}

#[test]
fn the_data_folder_is_out_of_reach() {
    at_every_level("data folder", |setting| {
        let data = data(setting);
        let at = data.display();
        let text = format!(
            "cat {at}/secret; ls {at}; cat < {at}/secret; ln {at}/secret link && cat link; ln -s {at} folder; \
             cat folder/secret; echo x > {at}/secret; mv {at}/secret .; rm -rf {at}; cp -r {at} copy; \
             cat copy/secret; tar -cf - {at} | tar -xOf -; true"
        );
        if setting.is_restricted() {
            let finished = protected(setting, &data, setting.command(text)).unwrap();
            assert!(finished.is_success() && !finished.stdout.contains("secret"), "{finished:?}");
        } else {
            let error = protected(setting, &data, Command::new(text)).unwrap_err();
            assert_eq!(error.code(), "sandbox_unavailable", "{error}");
        }
    });
}

#[test]
fn the_data_folder_is_hidden_where_all_files_are_allowed() {
    at_every_level("data folder in dev", |setting| {
        let data = data(setting);
        let text = format!("cat {0}/secret; ls -A {0}; umount {0}; cat {0}/secret; true", data.display());
        let finished = protected(setting, &data, all_allowed(Command::new(text))).unwrap();
        if setting.has(FeatureName::MountNamespace) {
            assert!(!finished.stdout.contains("secret"), "{finished:?}");
        } else {
            setting.say("weaker here: without a mount namespace it is an ordinary folder");
            assert!(finished.stdout.contains(SECRET), "{finished:?}");
        }
    });
}

#[test]
fn a_data_folder_may_contain_the_scratch_folder_and_be_in_the_given_one() {
    at_every_level("nested folders", |setting| {
        let data = data(setting);
        let scratch = data.join("scratch");
        let sandbox = Sandbox::new(
            crate::harness::program(setting.options),
            setting.isolation.clone(),
            IsolationLevel::Supervised,
            &scratch,
        );
        let sandbox = sandbox.protect(&data);
        let run = |command| crate::harness::block_on(sandbox.run(command, std::future::pending()));
        let text = format!("echo kept > file; cat file; cat {}/secret; true", data.display());
        let inside = run(setting.command(text.clone())).unwrap();
        assert!(inside.stdout.starts_with("kept\n"), "{inside:?}");
        assert_eq!(inside.stdout.contains(SECRET), !setting.is_restricted(), "{inside:?}");

        let around = Command { folder: Some(setting.folder.path().into()), ..setting.command(text) };
        match run(around) {
            Ok(around) if setting.is_restricted() => {
                assert!(setting.has(FeatureName::MountNamespace));
                assert_eq!(around.stdout, "kept\n", "{around:?}");
            }
            Ok(around) => assert!(around.stdout.contains(SECRET)),
            Err(error) => {
                assert!(!setting.has(FeatureName::MountNamespace), "{error}");
                assert_eq!(error.code(), "sandbox_unavailable");
            }
        }
    });
}

#[test]
fn the_system_is_there_to_read_and_nothing_else() {
    at_every_level("system", |setting| {
        if !setting.is_restricted() {
            setting.say("not tried: files are not restricted at this level");
            return;
        }
        let outside = setting.new_folder("outside");
        let at = outside.display();
        let text = format!(
            "cat /etc/hostname > /dev/null && ls /usr/bin > /dev/null && echo reads
             printf '#!/bin/bash\\necho runs' > script; chmod +x script; ./script
             mkdir -p a/b && mv a c && ln -s c d && rm -r c && echo writes > $TMPDIR/x && cat $TMPDIR/x
             for path in /etc/shadow /etc/ssl/private /root /home /tmp / /var/log /proc/1/environ /boot /sys/kernel/debug; do
                 {{ ls $path/ || cat $path; }} > /dev/null 2>&1 && echo read $path
             done
             for path in {at}/x /tmp/onward-x /usr/x /etc/x /dev/shm/x /var/tmp/x /run/x; do
                 {{ echo x > $path; }} 2> /dev/null && echo wrote $path
             done
             chmod 777 {at}/. 2> /dev/null; chattr +i . 2> /dev/null; mknod dev c 1 3 2> /dev/null && cat dev
             true"
        );
        let finished = setting.run(setting.command(text));
        assert_eq!(finished.stdout, "reads\nruns\nwrites\n", "{finished:?}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    });
}

#[test]
fn all_files_of_the_user_are_there_in_dev() {
    at_every_level("files in dev", |setting| {
        let outside = setting.new_folder("outside");
        let text = format!("echo x > {}/x && ls / /tmp > /dev/null && id -u", outside.display());
        let finished = setting.run(all_allowed(Command::new(text)));
        let user = match setting.options.contains(&"--user") {
            true => 65_534,
            false => rustix::process::geteuid().as_raw(),
        };
        assert_eq!(finished.stdout, format!("{user}\n"), "{finished:?}");
        assert!(outside.join("x").exists());
    });
}

#[test]
fn a_folder_is_deleted_whatever_is_in_it() {
    at_every_level("deletion", |setting| {
        let outside = setting.new_folder("outside");
        std::fs::write(outside.join("kept"), "").unwrap();
        let text = format!(
            "for n in {{1..30}}; do mkdir -p many-$n/x; : > many-$n/x/file; chmod 000 many-$n/x many-$n; done
             d=deep; for n in {{1..60}}; do mkdir $d && cd $d; done; chmod 000 .; cd \"$HOME\"
             ln -s {0} link; ln -s / root; ln -s . loop; mkfifo pipe; touch $'new\\nline' ./-rf '*'
             ln {0}/kept hard 2> /dev/null
             chmod 000 $TMPDIR; chmod 000 . ..; exit 0",
            outside.display()
        );
        let finished = setting.run(setting.command(text));
        assert_eq!((finished.ended, finished.left_behind), (EndReason::Exited, None), "{}", finished.stderr);
        assert!(setting.private_folders().is_empty() && outside.join("kept").exists());
    });
}

#[test]
fn a_scratch_folder_out_of_reach_is_an_error() {
    at_every_level("scratch", |setting| {
        let closed = setting.new_folder("closed");
        std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
        let link = setting.folder.path().join("link");
        symlink(closed.join("scratch"), &link).unwrap();
        for scratch in [closed.join("scratch"), link, setting.folder.path().join("data\0")] {
            let program = crate::harness::program(setting.options);
            let sandbox = Sandbox::new(program, setting.isolation.clone(), IsolationLevel::Supervised, &scratch);
            let command = setting.command("pwd");
            let done = crate::harness::block_on(sandbox.run(command, std::future::pending()));
            let is_reachable = !setting.has(FeatureName::OwnUser) && !setting.options.contains(&"--user")
                || !setting.is_restricted() && !setting.options.contains(&"--user");
            match done {
                Ok(finished) => assert!(is_reachable && finished.is_success(), "{finished:?}"),
                Err(error) => assert_eq!(error.code(), "work_folder_unusable", "{error}"),
            }
        }
    });
}

//! Whether and how a server process runs `bash` steps: the flags, and what they allow the commands.
//!
//! | | `onward dev` | `onward serve` |
//! |---|---|---|
//! | commands run | always | with `--bash` |
//! | required isolation | `supervised` | `restricted` |
//! | network | on | off; on with `--bash-network` |
//! | files | all that the user of the server may write | the work folder |

use crate::exit;
use crate::node::Failure;
use bash::{FileAccess, IsolationLevel, NetworkAccess, Program};
use engine::BashOptions;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct CommandFlags {
    /// How many commands of bash steps run at once, 1 to 256
    #[arg(long, env = "ONWARD_BASH_SLOTS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    bash_slots: u32,
    /// Refuse bash steps if this machine contains commands less well: `supervised`, `restricted` or `isolated`
    /// (default: `supervised` with `dev`, `restricted` with `serve`)
    #[arg(long, env = "ONWARD_BASH_ISOLATION", value_parser = ["supervised", "restricted", "isolated"])]
    bash_isolation: Option<String>,
    /// The folder that all commands of bash steps work in (default: a new private folder for each command)
    #[arg(long, env = "ONWARD_WORKSPACE")]
    workspace: Option<PathBuf>,
}

/// The flags of `onward serve`, where commands are off by default.
#[derive(clap::Args)]
pub struct ServeFlags {
    /// Run the commands of bash steps on this server
    #[arg(long, env = "ONWARD_BASH")]
    bash: bool,
    /// Let the commands of bash steps use the network
    #[arg(long, env = "ONWARD_BASH_NETWORK")]
    bash_network: bool,
    #[command(flatten)]
    flags: CommandFlags,
}

/// What commands are allowed.
pub struct Settings {
    required: IsolationLevel,
    network: NetworkAccess,
    files: FileAccess,
    slots: u32,
    workspace: Option<PathBuf>,
}

pub fn of_dev(flags: CommandFlags) -> Result<Settings, String> {
    settings(flags, IsolationLevel::Supervised, NetworkAccess::On, FileAccess::Anywhere)
}

/// `None` without `--bash`.
pub fn of_serve(flags: ServeFlags) -> Result<Option<Settings>, String> {
    let ServeFlags { bash, bash_network, flags } = flags;
    if !bash {
        let given = [
            ("--bash-network", bash_network),
            ("--bash-isolation", flags.bash_isolation.is_some()),
            ("--workspace", flags.workspace.is_some()),
        ];
        return match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(format!("`{flag}` needs `--bash`, which lets this server run commands")),
            None => Ok(None),
        };
    }
    let network = if bash_network { NetworkAccess::On } else { NetworkAccess::Off };
    settings(flags, IsolationLevel::Restricted, network, FileAccess::WorkFolder).map(Some)
}

fn settings(
    flags: CommandFlags,
    required: IsolationLevel,
    network: NetworkAccess,
    files: FileAccess,
) -> Result<Settings, String> {
    let required = flags.bash_isolation.as_deref().and_then(IsolationLevel::parse).unwrap_or(required);
    let absolute = |folder: PathBuf| match std::fs::canonicalize(&folder) {
        Ok(path) if path.is_dir() => Ok(path),
        Ok(_) => Err(format!("`--workspace {}` is not a folder", folder.display())),
        Err(error) => Err(format!("`--workspace {}` cannot be used: {error}", folder.display())),
    };
    let workspace = flags.workspace.map(absolute).transpose()?;
    Ok(Settings { required, network, files, slots: flags.bash_slots, workspace })
}

impl Settings {
    /// `data` exists. `secrets` are files that commands must not read, wherever they are.
    pub fn options(self, data: &Path, secrets: Vec<PathBuf>) -> Result<BashOptions, Failure> {
        let failed = |path: &Path, why: &dyn std::fmt::Display| {
            (exit::INPUT_OUTPUT, format!("cannot use {} for the files of commands: {why}", path.display()))
        };
        let data = std::fs::canonicalize(data).map_err(|error| failed(data, &error))?;
        let scratch = match rustix::process::geteuid().is_root() {
            // Each command is another user, who does not get through the data folder.
            true => std::env::temp_dir().join("onward-bash"),
            false => data.join("bash"),
        };
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&scratch);
        made.map_err(|error| failed(&scratch, &error))?;
        let found = std::fs::symlink_metadata(&scratch).map_err(|error| failed(&scratch, &error))?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(failed(&scratch, &"it belongs to another user, or is a link"));
        }
        let secrets = secrets.iter().filter_map(|path| std::fs::canonicalize(path).ok());
        let outside: Vec<PathBuf> = secrets.filter(|path| !path.starts_with(&data)).collect();
        Ok(BashOptions {
            program: Program::this(),
            required: self.required,
            network: self.network,
            files: self.files,
            slots: self.slots,
            workspace: self.workspace,
            scratch,
            protected: std::iter::once(data).chain(outside).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Serve {
        #[command(flatten)]
        flags: ServeFlags,
    }

    fn serve(arguments: &[&str]) -> Result<Option<Settings>, String> {
        let arguments = std::iter::once("serve").chain(arguments.iter().copied());
        of_serve(Serve::try_parse_from(arguments).expect("arguments").flags)
    }

    #[test]
    fn a_server_for_others_runs_commands_only_when_told_to() {
        assert!(serve(&[]).unwrap().is_none());
        let plain = serve(&["--bash"]).unwrap().unwrap();
        assert_eq!((plain.required, plain.network), (IsolationLevel::Restricted, NetworkAccess::Off));
        assert_eq!((plain.files, plain.slots), (FileAccess::WorkFolder, 8));
        let all = ["--bash", "--bash-network", "--bash-isolation", "isolated", "--workspace", "/", "--bash-slots", "2"];
        let all = serve(&all).unwrap().unwrap();
        assert_eq!((all.required, all.network, all.slots), (IsolationLevel::Isolated, NetworkAccess::On, 2));
        assert_eq!(all.workspace.as_deref(), Some(Path::new("/")));
        for arguments in [&["--bash-network"][..], &["--workspace", "/"], &["--bash-isolation", "isolated"]] {
            assert!(serve(arguments).err().unwrap().contains("needs `--bash`"));
        }
        assert!(serve(&["--bash", "--workspace", "/nowhere"]).err().unwrap().contains("cannot be used"));
    }
}

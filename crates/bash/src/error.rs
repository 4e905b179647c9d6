//! Why a command did not run. A command that ran and failed is no error, see [`EndReason`](crate::EndReason).

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command or its settings; another attempt is refused, too.
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    /// This machine cannot contain the command as asked. Nothing ran.
    #[error("{message}")]
    SandboxUnavailable { message: String },
    /// A work folder is missing, or not usable. Nothing ran.
    #[error("work folder `{}`: {message}", path.display())]
    WorkFolder { path: PathBuf, message: String },
    /// The supervisor did not start, or ended without a report. Whether the command ran is not known.
    #[error("the supervisor of the command failed: {0}")]
    Supervisor(String),
}

impl Error {
    /// Stable, for logs and API answers.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid_command",
            Self::SandboxUnavailable { .. } => "sandbox_unavailable",
            Self::WorkFolder { .. } => "work_folder_unusable",
            Self::Supervisor(_) => "supervisor_failed",
        }
    }

    /// What the operator or the author of the command can do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "change the step; pass dynamic values by `env` or standard input",
            Self::SandboxUnavailable { .. } => {
                "`GET /version` lists what this machine offers; allow user namespaces or use a newer kernel, allow the \
                 command more, or lower the required level"
            }
            Self::WorkFolder { .. } => "the folder must exist, and the user that runs the command must reach it",
            Self::Supervisor(_) => "look at the log for memory shortage; check what the command did before retrying",
        }
    }

    /// Whether the command may have run.
    pub fn may_have_run(&self) -> bool {
        matches!(self, Self::Supervisor(_))
    }
}

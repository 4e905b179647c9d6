//! Asks this machine what it offers: each feature is tried in a process of its own. No version of the kernel is looked
//! at, because containers and security modules take away what the version promises.

use crate::error::Error;
use crate::isolation::{Containment, Feature, FeatureName, IsolationReport};
use crate::sandbox::Program;
use crate::stage::ProbeAnswer;
use std::process::Stdio;

/// Starts about thirty short processes and takes about a tenth of a second. For the start of the engine; it blocks.
pub fn probe(program: &Program) -> Result<IsolationReport, Error> {
    let mut contain = Containment::default();
    let mut features = Vec::new();
    for name in FeatureName::TRIED {
        let found = attempt(program, name, &contain)?;
        if found.result.is_ok() {
            contain = found.contain;
        }
        let available = found.result.is_ok();
        let (Ok(why) | Err(why)) = found.result;
        features.push(Feature { name, available, why });
    }
    Ok(IsolationReport::new(features, contain))
}

fn attempt(program: &Program, name: FeatureName, contain: &Containment) -> Result<ProbeAnswer, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Supervisor(format!("probe of `{}`: {error}", name.word()));
    let contain_text = serde_json::to_string(contain).map_err(|e| failed(&e))?;
    let mut command = program.command(&["probe", name.word(), &contain_text]);
    let output = command.stdin(Stdio::null()).output().map_err(|e| failed(&e))?;
    match serde_json::from_slice(&output.stdout) {
        Ok(found) => Ok(found),
        // Killed by what it tried: some containers answer a forbidden call with a signal.
        Err(_) if !output.status.success() => {
            Ok(ProbeAnswer { contain: *contain, result: Err(format!("the try ended with {}", output.status)) })
        }
        Err(error) => Err(failed(&error)),
    }
}

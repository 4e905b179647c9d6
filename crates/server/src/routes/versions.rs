//! Versions of a workflow: list, differences, graph. A deleted workflow is found by its id.

use super::workflows::find_or_deleted;
use super::{answer, page};
use crate::contract::{Param, Route, get, params};
use crate::query::{Query, invalid};
use crate::{Answer, App, Path, Refusal, State, diff, views};
use api::{Code, DiffView, GraphView, VersionEntryView, rfc3339};
use engine::services::Chosen;
use serde_json::{Value, json};
use store::{VersionKey, VersionRow, WorkflowRow};

const EXPECTED: &str = "the number or the hash of a version";

pub const VERSION: Param = Param::new("version", EXPECTED, version_schema);
const FROM: Param =
    Param::new("from", "the earlier version: number or hash; by default the one before `to`", version_schema);
const TO: Param = Param::new("to", "the later version: number or hash; by default the current one", version_schema);

fn version_schema() -> Value {
    json!({ "type": "string", "pattern": "^([0-9]{1,9}|(sha256:)?[0-9a-fA-F]{64})$" })
}

pub fn hash_schema() -> Value {
    json!({ "type": "string", "pattern": "^(sha256:)?[0-9a-fA-F]{64}$" })
}

pub fn routes() -> Vec<Route> {
    let damaged = &[Code::RunDamaged, Code::RunNeedsUpgrade];
    vec![
        get(
            "/api/v1/workflows/{workflow}/history",
            history,
            "list_versions",
            "List the versions of a workflow, newest first",
        )
        .pages::<VersionEntryView>(params::NUMBER_CURSOR),
        get("/api/v1/workflows/{workflow}/diff", diff, "diff_versions", "Compare two versions of a workflow")
            .query(&[FROM, TO])
            .answers::<DiffView>(200, "the differences in steps and settings, and as text")
            .refuses(damaged),
        get(
            "/api/v1/workflows/{workflow}/graph",
            graph,
            "show_workflow_graph",
            "Show the steps of a workflow as a graph",
        )
        .query(&[VERSION])
        .answers::<GraphView>(200, "nodes and edges")
        .refuses(damaged),
    ]
}

pub async fn history(app: State, query: Query, Path(key): Path<String>) -> Answer {
    let limit = query.limit()?;
    let before = query.number("cursor", "`next` of the previous page")?.map(|n| n.try_into().unwrap_or(u32::MAX));
    let row = find_or_deleted(&app, &key).await?;
    let mut versions = app.engine.workflows.versions(app.org(), row.id, before, limit + 1).await?;
    let next = (versions.len() > limit).then(|| versions[limit - 1].number.to_string());
    versions.truncate(limit);
    Ok(page(versions.iter().map(entry).collect(), next))
}

pub async fn diff(app: State, query: Query, Path(key): Path<String>) -> Answer {
    let row = find_or_deleted(&app, &key).await?;
    let to = match query.get("to") {
        Some(text) => named(&app, &row, "to", text).await?,
        None => chosen(&app, &row, VersionKey::Number(row.version))
            .await?
            .ok_or_else(|| Refusal::not_found("workflow", &key))?,
    };
    let from = match query.get("from") {
        Some(text) => named(&app, &row, "from", text).await?,
        None => {
            let before = VersionKey::Number(to.version.number.saturating_sub(1).max(1));
            chosen(&app, &row, before).await?.ok_or_else(|| Refusal::not_found("workflow", &key))?
        }
    };
    let (old, new) = (source(&from), source(&to));
    let label = |version: &VersionRow| format!("version {}", version.number);
    Ok(answer(
        200,
        DiffView {
            steps: diff::steps(&old, &new),
            settings: diff::settings(&old, &new),
            text: diff::text((&label(&from.version), &old), (&label(&to.version), &new)),
            from: entry(&from.version),
            to: entry(&to.version),
        },
    ))
}

pub async fn graph(app: State, query: Query, Path(key): Path<String>) -> Answer {
    let row = find_or_deleted(&app, &key).await?;
    let chosen = of(&app, &row, &query).await?;
    Ok(answer(200, views::graph::of_version(&*app.engine.workflows.version_with_plan(&row, &chosen.version).await?)))
}

/// The version that `?version=` names; by default the current one.
pub async fn of(app: &App, row: &WorkflowRow, query: &Query) -> Result<Chosen, Refusal> {
    match query.get("version") {
        Some(text) => named(app, row, "version", text).await,
        None => {
            let found = chosen(app, row, VersionKey::Number(row.version)).await?;
            found.ok_or_else(|| Refusal::not_found("version", &row.version.to_string()))
        }
    }
}

async fn named(app: &App, row: &WorkflowRow, parameter: &str, text: &str) -> Result<Chosen, Refusal> {
    let by = match hash(text) {
        Some(hash) => VersionKey::Hash(hash),
        None => VersionKey::Number(text.parse().map_err(|_| invalid(parameter, text, EXPECTED))?),
    };
    let found = chosen(app, row, by).await?;
    found.ok_or_else(|| Refusal::not_found("version", text).at(parameter))
}

async fn chosen(app: &App, row: &WorkflowRow, by: VersionKey) -> Result<Option<Chosen>, Refusal> {
    Ok(app.engine.workflows.version(app.org(), row.id, by).await?)
}

/// Parses `sha256:<hex>`, with or without the prefix.
pub fn hash(text: &str) -> Option<[u8; 32]> {
    let hex = text.strip_prefix("sha256:").unwrap_or(text);
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

pub fn source(chosen: &Chosen) -> Value {
    serde_json::from_slice(&chosen.source).unwrap_or_default()
}

fn entry(version: &VersionRow) -> VersionEntryView {
    VersionEntryView {
        number: version.number,
        hash: views::hash(&version.hash),
        source: version.source.clone(),
        at: rfc3339(version.at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_64_hex_digits_with_or_without_its_prefix() {
        let hex = "0a".repeat(32);
        assert_eq!(hash(&hex), Some([10; 32]));
        assert_eq!(hash(&format!("sha256:{hex}")), Some([10; 32]));
        for bad in ["", "7", "sha256:", &hex[1..], &format!("md5:{hex}"), &"+1".repeat(32), &"é".repeat(32)] {
            assert_eq!(hash(bad), None, "{bad}");
        }
    }
}

//! `verify` on Postgres: it finds no problem in a good database, and finds every kind of damage.

use super::sample;
use engine::verify::{Code, Report, verify};
use kernel::RunId;
use std::sync::{Arc, OnceLock};
use store::prelude::*;
use store::{Error, Location, PostgresInspection, PostgresStore};
use testkit::postgres::{name_in, shared};

fn verify_database(url: &str) -> Report {
    let inspection = PostgresInspection::open(url).unwrap();
    verify(&inspection, 1_000, &mut |_| {}).unwrap()
}

/// The URL of a database with runs in every state, and the ids of these runs.
fn sampled() -> &'static (String, sample::Sample) {
    static SAMPLE: OnceLock<(String, sample::Sample)> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let url = shared().database();
        let sample = sample::fill(|| async { Arc::new(PostgresStore::open(&url).await.unwrap()) as Arc<dyn Store> });
        // Sessions of a runtime that has shut down take a moment to end, and a database with sessions cannot be copied.
        let ends =
            format!("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{}'", name_in(&url));
        shared().sql("postgres", &ends);
        (url, sample)
    })
}

#[test]
fn a_database_with_runs_in_every_state_is_clean() {
    let (url, _) = sampled();
    let copy = shared().copy_of(url);
    let report = verify_database(&copy);
    assert!(report.is_clean(), "{:#?}", report.problems);
    for (name, count) in report.counts.list() {
        // The engine evicts runs with ready tasks only when there are thousands of them.
        assert!(count > 0 || name == "ready", "the sample has no {name}");
    }
    assert_eq!(report.counts.journal, report.counts.records);
    let left = shared().sql(name_in(&copy), "SELECT count(*) FROM onward.arrivals");
    assert_ne!(left, "0", "records without a position were read and not changed");
}

#[test]
fn a_database_without_tables_is_clean_and_a_missing_one_cannot_be_read() {
    let url = shared().database();
    assert!(verify_database(&url).is_clean());
    assert_eq!(shared().sql(name_in(&url), "SELECT to_regnamespace('onward') IS NULL"), "t", "it wrote");
    let nowhere = shared().url("nowhere");
    assert!(matches!(PostgresInspection::open(&nowhere), Err(Error::Refused(_))));
    assert!(url.parse::<Location>().unwrap().inspect().is_ok());
}

#[test]
fn every_damage_is_found() {
    let (url, s) = sampled();
    let of = |run: RunId| format!("'{}'", run.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let (waiting, sleeping, completed) = (of(s.waiting), of(s.sleeping), of(s.completed));
    let trigger = |workflow: &str, kind: &str, config: &str, next: &str| {
        format!(
            "INSERT INTO triggers (org, id, name, kind, workflow, enabled, config, owned, revision, next_at, created_at, updated_at)
             VALUES (1, '00000000-0000-0000-0000-000000000001', 't', '{kind}', {workflow}, true, '{config}', false, 1, {next}, 0, 0)"
        )
    };
    const WORKFLOW: &str = "(SELECT id FROM workflows ORDER BY id LIMIT 1)";
    const MISSING_ID: &str = "'00000000-0000-0000-0000-000000000000'";
    let damages = [
        (Code::SchemaUnknown, "UPDATE schema_migrations SET sha256 = 'other'".to_owned()),
        (Code::SchemaUnknown, "INSERT INTO schema_migrations VALUES (99, 'later', 'hash', 0)".into()),
        (Code::RowUnreadable, "UPDATE runs SET form = 'riddle'".into()),
        (Code::RowUnreadable, format!(r"UPDATE waits SET hash = '\x00' WHERE run = {waiting}")),
        (Code::RowUnreadable, "UPDATE workflows SET hash = ''".into()),
        (Code::SettingDamaged, "UPDATE settings SET value = 'x' WHERE name = 'erased_until_us'".into()),
        (Code::SettingDamaged, "DELETE FROM nodes".into()),
        (Code::Dangling, format!("DELETE FROM runs WHERE id = {waiting}")),
        (Code::Dangling, "DELETE FROM workflows".into()),
        (Code::Dangling, format!("UPDATE idempotency SET made = {MISSING_ID} WHERE scope = 'workflows'")),
        (Code::Dangling, format!("UPDATE idempotency SET made = {MISSING_ID} WHERE made = {waiting}")),
        (Code::Dangling, format!("INSERT INTO timers VALUES (1, 1, {MISSING_ID})")),
        (
            Code::Dangling,
            format!("INSERT INTO deliveries VALUES (1, {MISSING_ID}, 1, 'd', 0, 'started', '', NULL, NULL)"),
        ),
        (Code::Dangling, trigger(MISSING_ID, "manual", "{}", "NULL")),
        (Code::InboxStray, format!("INSERT INTO inbox VALUES (1, {MISSING_ID}, {MISSING_ID}, 'input', '', 0, NULL)")),
        (Code::TriggerWrong, trigger(WORKFLOW, "schedule", "{}", "1")),
        (Code::OtherOrganisation, "UPDATE labels SET org = 2 WHERE org = 1".into()),
        (Code::OtherOrganisation, "UPDATE payloads SET org = 2".into()),
        (Code::OtherOrganisation, format!("UPDATE waits SET org = 2 WHERE run = {waiting}")),
        (Code::ChainBroken, format!("DELETE FROM journal WHERE run = {sleeping} AND seq = 5")),
        (Code::ChainBroken, format!("UPDATE journal SET seq = 999 WHERE run = {sleeping} AND seq = 5")),
        (Code::ChainBroken, format!("DELETE FROM journal WHERE run = {completed}")),
        (Code::JournalOrphan, format!("UPDATE journal SET org = 2 WHERE run = {sleeping} AND seq = 5")),
        (Code::JournalOrphan, format!("INSERT INTO journal VALUES (1, {MISSING_ID}, 1, '')")),
        (Code::JournalOrphan, "DELETE FROM arrivals".into()),
        (
            Code::JournalGap,
            "DELETE FROM positions WHERE first = (SELECT min(first) FROM positions WHERE first > 9)".into(),
        ),
        (Code::JournalGap, format!("DELETE FROM journal WHERE run = {sleeping} AND seq = 5")),
        (Code::RecordDamaged, format!(r"UPDATE journal SET body = body || '\x00' WHERE run = {completed}")),
        (Code::SnapshotDiffers, "UPDATE snapshots SET seq = seq - 1".into()),
        (Code::RowDiffers, format!("UPDATE runs SET status = 'failed' WHERE id = {completed}")),
        (Code::Conservation, format!("UPDATE runs SET status = 'failed' WHERE id = {waiting}")),
    ];
    let mut overlooked = Vec::new();
    for (code, statement) in damages {
        let copy = shared().copy_of(url);
        shared().sql(name_in(&copy), &format!("SET search_path = onward; {statement}"));
        let report = verify_database(&copy);
        if !report.found.contains_key(&code) {
            overlooked.push(format!("{} ({statement}): found {:#?}", code.as_str(), report.problems));
        }
        shared().sql("postgres", &format!("DROP DATABASE {} WITH (FORCE)", name_in(&copy)));
    }
    assert!(overlooked.is_empty(), "{}", overlooked.join("\n"));
}

/// A node appended a record while another deleted the run: the record is never read, so it is no damage.
#[test]
fn a_record_appended_to_a_run_during_its_deletion_is_no_damage() {
    let (url, s) = sampled();
    let copy = shared().copy_of(url);
    let run = s.erased.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let key = format!("\\x00000001{run}00000063");
    shared().sql(
        name_in(&copy),
        &format!(
            "INSERT INTO onward.journal VALUES (1, '{run}', 99, ''); INSERT INTO onward.arrivals (epoch, records) VALUES (1, '{key}')"
        ),
    );
    let report = verify_database(&copy);
    assert!(report.is_clean(), "{:#?}", report.problems);
}

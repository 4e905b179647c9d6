//! Opening a Postgres database: migrations, databases that are refused, TLS and passwords, and query plans.

use crate::postgres::{Database, open, runtime};
use std::process::Command;
use store::prelude::*;
use store::{Error, PostgresStore, WorkflowKey};
use testkit::conformance::fixtures::{ORG, batch, new_workflow, run, start};
use testkit::postgres::{PostgresCluster, name_in, shared};

fn try_open(url: &str) -> Result<PostgresStore, Error> {
    runtime().block_on(PostgresStore::open(url))
}

/// Wherever it stops, the schema is exactly that of the migrations recorded as applied.
#[test]
fn a_migration_that_is_interrupted_leaves_nothing_behind() {
    let url = shared().database();
    let name = name_in(&url);
    let query = |query: &str| shared().sql(name, query);
    let tables =
        "SELECT string_agg(relname, ' ' ORDER BY oid) FROM pg_class WHERE relnamespace = to_regnamespace('onward')";
    let mut schemas: Vec<String> = Vec::new();
    let mut statements = 0;
    while let Err(error) = runtime().block_on(PostgresStore::open_with_statement_limit(&url, statements)) {
        assert!(matches!(&error, Error::Unavailable(why) if why.contains("stopped by the test")), "{error}");
        let done: usize = match query("SELECT to_regclass('onward.schema_migrations') IS NOT NULL").as_str() {
            "t" => query("SELECT count(*) FROM onward.schema_migrations").parse().unwrap(),
            _ => 0,
        };
        let schema = query(tables);
        if schemas.len() == done {
            schemas.push(schema.clone());
        }
        assert_eq!(schemas.last(), Some(&schema), "{done} migrations after {statements} statements");
        query("DROP SCHEMA IF EXISTS onward CASCADE");
        statements += 1;
    }
    assert!(statements > 30, "the migrations have only {statements} statements");
    assert_eq!(schemas[0], "", "nothing before the first");
    assert_eq!(query("SELECT count(*) FROM onward.schema_migrations"), schemas.len().to_string());
    let store = open(&url);
    runtime().block_on(store.commit(&batch([start(run(1))]))).unwrap();
}

#[test]
fn nodes_that_start_at_the_same_time_create_the_schema_once() {
    let url = shared().database();
    std::thread::scope(|scope| {
        let opened: Vec<_> = (0..6).map(|_| scope.spawn(|| try_open(&url).map(drop))).collect();
        for one in opened {
            assert_eq!(one.join().unwrap(), Ok(()));
        }
    });
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres")).unwrap().count();
    assert_eq!(shared().sql(name_in(&url), "SELECT count(*) FROM onward.schema_migrations"), files.to_string());
}

/// Turns a database into one of the release before lowerings.
const BEFORE_LOWERING: &str = "
    DROP TABLE onward.inbox;
    DROP TABLE onward.open_waits;
    DROP INDEX onward.waits_of_run;
    ALTER TABLE onward.runs DROP COLUMN failed_steps, DROP COLUMN lowering;
    ALTER TABLE onward.versions DROP COLUMN definition;
    ALTER TABLE onward.workflows DROP COLUMN lowering;
    ALTER TABLE onward.definitions DROP CONSTRAINT definitions_pkey, ADD CONSTRAINT definitions_pkey PRIMARY KEY (org, hash);
    ALTER TABLE onward.definitions DROP COLUMN lowering;
    DELETE FROM onward.schema_migrations WHERE version >= 3";

#[test]
fn m7_a_database_from_before_lowerings_keeps_its_plans() {
    let url = shared().database();
    let store = open(&url);
    let new = new_workflow(1, "a", "a");
    runtime().block_on(store.create_workflow(&new)).unwrap().unwrap();
    runtime().block_on(store.commit(&batch([start(run(1))]))).unwrap();
    drop(store);
    shared().sql(name_in(&url), BEFORE_LOWERING);
    let again = open(&url);
    let definition = runtime().block_on(again.definition(ORG, new.row.hash, Some(0))).unwrap();
    assert_eq!(definition, Some(new.definition.clone()));
    assert_eq!(runtime().block_on(again.run(ORG, run(1))).unwrap().unwrap().lowering, 0);
    let key = WorkflowKey::Id(new.row.id);
    assert_eq!(runtime().block_on(again.workflow(ORG, &key)).unwrap().unwrap().lowering, 0);
    assert_eq!(runtime().block_on(again.active_runs()), Ok(vec![(ORG, run(1))]));
    // The same definition can be stored again as this release lowers it.
    let relowered = store::StoredDefinition { lowering: 1, ..new.definition.clone() };
    let other = store::NewWorkflow { definition: relowered.clone(), ..new_workflow(2, "b", "b") };
    runtime().block_on(again.create_workflow(&other)).unwrap().unwrap();
    assert_eq!(runtime().block_on(again.definition(ORG, new.row.hash, Some(1))), Ok(Some(relowered)));
}

#[test]
fn partitions_are_created_ahead_and_dropped_when_empty() {
    let database = Database::new();
    drop(open(&database.url));
    let months = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'onward.journal'::regclass";
    assert_eq!(shared().sql(name_in(&database.url), months), "4", "three months and the default partition");
    // An empty partition of a past month is dropped; one with records stays.
    let name = name_in(&database.url);
    for (month, from, to) in [("2020_01", "016f5e66", "016ffe0c"), ("2020_02", "016ffe0c", "01709364")] {
        let zeros = "0000-0000-0000-000000000000";
        shared().sql(
            name,
            &format!("CREATE TABLE onward.journal_{month} PARTITION OF onward.journal FOR VALUES FROM ('{from}-{zeros}') TO ('{to}-{zeros}')"),
        );
    }
    shared().sql(name, "INSERT INTO onward.journal VALUES (1, '016ffe0d-0000-7000-8000-000000000000', 1, '')");
    drop(open(&database.url));
    let left =
        "SELECT string_agg(relname, ' ') FROM pg_class WHERE relname LIKE 'journal\\_2020\\___' AND relkind = 'r'";
    assert_eq!(shared().sql(name, left), "journal_2020_02");
    shared().sql(name, "DROP TABLE onward.journal_2020_02");
}

#[test]
fn a_database_of_another_program_or_build_is_refused() {
    let url = shared().database();
    let name = name_in(&url);
    shared().sql(name, "CREATE SCHEMA onward; CREATE TABLE onward.mine (x int)");
    let refused = try_open(&url).err();
    assert!(matches!(&refused, Some(Error::Refused(why)) if why.contains("another program")), "{refused:?}");
    shared().sql(name, "DROP SCHEMA onward CASCADE");
    drop(open(&url));
    shared().sql(name, "INSERT INTO onward.schema_migrations VALUES (99, 'later', '', 0)");
    let refused = try_open(&url).err();
    assert!(matches!(&refused, Some(Error::Refused(why)) if why.contains("schema 99")), "{refused:?}");
    shared().sql(
        name,
        "DELETE FROM onward.schema_migrations WHERE version = 99; UPDATE onward.schema_migrations SET sha256 = 'x'",
    );
    let refused = try_open(&url).err();
    assert!(matches!(&refused, Some(Error::Refused(why)) if why.contains("different build")), "{refused:?}");
}

#[test]
fn a_database_that_cannot_be_opened_says_why() {
    let nowhere = try_open("postgres://u@127.0.0.1:1/d").err();
    assert!(matches!(&nowhere, Some(Error::Unavailable(why)) if why.contains("reached")), "{nowhere:?}");
    let missing = try_open(&shared().url("no_such_database")).err();
    assert!(matches!(&missing, Some(Error::Refused(why)) if why.contains("no_such_database")), "{missing:?}");
    let latin = "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0";
    shared().sql("postgres", latin);
    let latin = try_open(&shared().url("latin")).err();
    assert!(matches!(&latin, Some(Error::Refused(why)) if why.contains("UTF8")), "{latin:?}");
}

#[test]
fn tls_and_passwords() {
    let cluster = PostgresCluster::start(&[]);
    let folder = cluster.folder();
    let certificate = folder.join("server.crt");
    // The key must belong to the Unix user of the server, which owns the folder.
    let openssl = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .arg(folder.join("server.key"))
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(openssl.status.success(), "{}", String::from_utf8_lossy(&openssl.stderr));
    let owner = std::fs::metadata(folder).unwrap();
    for file in ["server.key", "server.crt"] {
        use std::os::unix::fs::MetadataExt;
        std::os::unix::fs::chown(folder.join(file), Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let rules = "hostssl all onward 127.0.0.1/32 scram-sha-256\nlocal all all trust\n";
    std::fs::write(folder.join("data/pg_hba.conf"), rules).unwrap();
    let file = |name: &str| folder.join(name).display().to_string();
    cluster.sql("postgres", &format!("ALTER SYSTEM SET ssl_cert_file = '{}'", file("server.crt")));
    cluster.sql("postgres", &format!("ALTER SYSTEM SET ssl_key_file = '{}'", file("server.key")));
    cluster.sql("postgres", "ALTER SYSTEM SET ssl = on");
    cluster.sql("postgres", "ALTER ROLE onward PASSWORD 'se/cret'; SELECT pg_reload_conf()");

    let tcp = cluster.tcp_url("postgres").replace("onward@127.0.0.1", "onward:se%2Fcret@127.0.0.1");
    let named = tcp.replace("@127.0.0.1", "@localhost") + "?hostaddr=127.0.0.1&";
    let root = certificate.display().to_string().replace('/', "%2F");
    // Reloading takes a moment.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while try_open(&format!("{tcp}?sslmode=require")).is_err() {
        assert!(std::time::Instant::now() < until, "{:?}", try_open(&format!("{tcp}?sslmode=require")).err());
    }
    for good in [
        tcp.clone(),
        format!("{tcp}?sslmode=verify-ca&sslrootcert={root}"),
        format!("{named}sslmode=verify-full&sslrootcert={root}"),
    ] {
        let store = try_open(&good).unwrap();
        runtime().block_on(store.run(ORG, run(1))).unwrap();
        let encrypted =
            "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'onward'";
        assert_eq!(cluster.sql("postgres", encrypted), "t", "{good}");
    }
    for (bad, why) in [
        (format!("{tcp}?sslmode=disable"), "no encryption"),
        (format!("{tcp}?sslmode=verify-full&sslrootcert={root}"), "certificate"),
        (format!("{tcp}?sslmode=verify-ca"), "certificate"),
        (tcp.replace("se%2Fcret", "wrong"), "password"),
    ] {
        let error = try_open(&bad).err().expect("it is refused").to_string();
        assert!(error.contains(why), "{bad}: {error}");
        assert!(!error.contains("cret"), "{error}");
    }
}

/// Statements are prepared while the tables are empty, and used when they are large. So the plans must use the indexes
/// also for a table that looks empty.
#[test]
fn plans_use_the_indexes_even_on_empty_tables() {
    let database = Database::new();
    let name = name_in(&database.url);
    let settings = "SET search_path = onward; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
        SET enable_bitmapscan = off; SET enable_sort = off;
        SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;";
    let plans = [
        ("postgres/journal_append", "_pkey on journal"),
        ("postgres/journal_of", "Index Cond: ((org = r.org) AND (run = r.run) AND (seq = r.seq))"),
        ("postgres/journal_has", "Index Cond: ((org = r.org) AND (run = r.run) AND (seq = r.seq))"),
        ("postgres/heads", "Index Cond: ((org = r.org) AND (run = r.run))"),
        ("postgres/keys_held", "Index Cond: ((org = r.org) AND (scope = r.scope) AND (key = r.key))"),
        ("postgres/waits_held", "Index Cond: (hash = r.hash)"),
        ("postgres/payloads_held", "Index Cond: ((org = r.org) AND (run = r.run) AND (number = r.number))"),
        ("postgres/timers_delete", "Index Cond: ((at = r.at) AND (org = r.org) AND (run = r.run))"),
        ("postgres/ready_delete", "Index Cond: ((org = r.org) AND (name = r.name) AND (key = r.key) AND"),
        ("postgres/arrivals_take", "Index Cond: (id > $1)"),
        ("postgres/positions_after", "Index Scan using positions_pkey"),
        ("postgres/runs_all", "Index Scan Backward using runs_pkey"),
        ("postgres/runs_of_workflow", "Index Scan Backward using runs_by_workflow"),
        ("postgres/runs_with_label", "Index Only Scan Backward using labels_pkey"),
        ("postgres/runs_in_status", "Index Scan Backward using runs_by_status"),
        ("postgres/runs_active", "using runs_by_status"),
        ("postgres/runs_in_groups", "Index Scan using runs_by_gate"),
        ("postgres/ready_types", "Index Only Scan using ready_pkey"),
        ("postgres/ready_keys", "Index Only Scan using ready_pkey"),
        ("timers_due", "Index Only Scan using timers_pkey"),
        ("ready", "Index Only Scan using ready_pkey"),
        ("wait", "Index Cond: (hash = $1)"),
        ("wait", "Index Cond: ((org = w.org) AND (id = w.run))"),
        ("postgres/run", "Index Scan using runs_pkey"),
        ("postgres/run_locked", "Index Scan using runs_pkey"),
        ("postgres/run_snapshot", "Index Scan using runs_pkey"),
        ("postgres/journal_of", "Index Scan using runs_pkey"),
        ("run_hide", "Index Scan using runs_pkey"),
        ("run_delete", "Index Scan using runs_pkey"),
        ("trigger", "Index Scan using triggers_pkey"),
        ("trigger_update", "Index Scan using triggers_pkey"),
        ("trigger_advance", "Index Scan using triggers_pkey"),
        ("postgres/runs_with_label", "Index Cond: ((org = labels.org) AND (id = labels.run))"),
    ];
    // Without statistics the planner assumes ten pages per table, with statistics of an empty table none.
    for statistics in ["SELECT", "ANALYZE", "VACUUM"] {
        shared().sql(name, statistics);
        for (statement, plan) in plans {
            let file = format!("{}/sql/{statement}.sql", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(file).unwrap();
            let count = (1..20).filter(|n| text.contains(&format!("${n}"))).count();
            let nothing = vec!["NULL"; count].join(", ");
            let given = if count == 0 { String::new() } else { format!("({nothing})") };
            let explain = format!("{settings} PREPARE one AS {text}; EXPLAIN (COSTS OFF) EXECUTE one {given}");
            let explained = shared().sql(name, &explain);
            assert!(explained.contains(plan), "{statement} after {statistics}:\n{explained}");
            assert!(!explained.contains("Seq Scan"), "{statement} after {statistics}:\n{explained}");
        }
    }
}

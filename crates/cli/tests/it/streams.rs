//! Event streams: no event is missing, and none comes twice on a run's own stream, whatever happens to the connection.

use crate::harness::{Message, Server, Stream, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ALL: &str = "/api/v1/events/stream";

fn of(run: &str) -> String {
    format!("/api/v1/runs/{run}/stream")
}

fn seqs(messages: &[Message]) -> Vec<u64> {
    let events = messages.iter().filter(|m| m.event.is_none());
    events.map(|m| m.data["seq"].as_u64().expect("a number")).collect()
}

/// Starts a run of many events that waits for a callback in the middle, and returns its id.
fn two_halves(server: &Server) -> String {
    let workflow = server.workflow(
        "a: {noop: {}}\nb: {noop: {}, needs: [a]}\nwait: {wait_for_webhook: {timeout: 1h}, needs: [b]}\n\
         c: {set: {url: \"{{wait.wait.url}}\"}, needs: [a]}\nd: {noop: {}, needs: [wait]}\ne: {noop: {}, needs: [d]}",
    );
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "wait", "waiting");
    server.when(&run, "c", "success");
    run
}

fn go_on(server: &Server, run: &str) {
    let url = server.run(run)["tasks"]["c"]["body"]["url"].as_str().expect("a url").to_owned();
    assert_eq!(server.call_back(&url, b"{}").status, 200);
}

#[test]
fn i4_a_stream_is_the_history_of_the_run_and_ends_with_it() {
    let server = Server::start();
    let run = two_halves(&server);
    let mut stream = server.stream(&of(&run), None);
    let before = server.events(&run).len() as u64;
    let mut messages: Vec<Message> = (0..before).map(|_| stream.next().expect("what has happened")).collect();
    go_on(&server, &run);
    messages.extend(stream.rest());
    let end = messages.pop().expect("an end");
    assert_eq!((end.event.as_deref(), &end.data), (Some("end"), &json!({ "run_id": run, "status": "completed" })));
    let history = server.events(&run);
    assert_eq!(messages.len(), history.len());
    for (message, event) in messages.iter().zip(&history) {
        assert_eq!(message.id, Some(event["seq"].to_string()));
        assert_eq!(message.event, None, "an event has the default name");
        let mut data = message.data.clone();
        assert_eq!(data["run_id"], run);
        for extra in ["run_id", "workflow"] {
            data.as_object_mut().expect("an object").remove(extra).expect("an event on a stream names its run");
        }
        assert_eq!(&data, event);
    }
}

#[test]
fn i4_a_stream_continues_where_another_was_cut_without_gap_or_repetition() {
    let server = Server::start();
    let run = two_halves(&server);
    let mut got = Vec::new();
    let mut stream = server.stream(&of(&run), None);
    for _ in 0..3 {
        got.push(stream.next().expect("an event"));
    }
    let cut = |stream: Stream| {
        let last = stream.last.clone();
        drop(stream);
        last
    };
    let mut stream = server.stream(&of(&run), cut(stream).as_deref());
    got.push(stream.next().expect("an event"));
    let last = cut(stream);
    go_on(&server, &run);
    server.finished(&run);
    let rest = server.stream(&of(&run), last.as_deref()).rest();
    assert_eq!(rest.last().and_then(|m| m.event.clone()).as_deref(), Some("end"));
    got.extend(rest);
    let count = server.events(&run).len() as u64;
    assert!(seqs(&got).into_iter().eq(1..=count), "{:?}", seqs(&got));
    let from = server.stream(&format!("{}?after={}", of(&run), count - 2), None).rest();
    assert_eq!(seqs(&from), [count - 1, count]);
    let over = server.stream(&of(&run), Some(&count.to_string())).rest();
    assert_eq!((over.len(), over[0].event.as_deref()), (1, Some("end")), "only the end message is left");
}

#[test]
fn an_invalid_stream_request_is_refused() {
    let server = Server::start();
    let run = server.trigger(&server.workflow("a: {noop: {}}"), &json!({}));
    for (path, last, status, code) in [
        (of("run_01m7fcn1rjfdmakq3knhwjatdz"), None, 404, "not_found"),
        (of("nonsense"), None, 400, "malformed_id"),
        (of(&run), Some("x"), 422, "invalid_header"),
        (of(&run) + "?after=-1", None, 422, "invalid_parameter"),
        (of(&run) + "?before=1", None, 422, "unknown_parameter"),
        (ALL.to_owned() + "?workflow=nope", None, 404, "not_found"),
        (ALL.to_owned() + "?type=run%20completed", None, 422, "invalid_parameter"),
        (ALL.to_owned(), Some("soon"), 422, "invalid_header"),
    ] {
        let headers: Vec<(&str, &str)> = last.map(|id| ("Last-Event-ID", id)).into_iter().collect();
        assert_eq!(server.send("GET", &path, &headers, b"").refusal(status), code, "{path}");
    }
}

#[test]
fn a_hundred_followers_of_one_run_all_see_all_of_it() {
    let server = Server::start();
    let run = two_halves(&server);
    let mut streams: Vec<Stream> = (0..100).map(|_| server.stream(&of(&run), None)).collect();
    for stream in &mut streams {
        stream.next().expect("it follows");
    }
    go_on(&server, &run);
    let count = server.finished(&run);
    assert_eq!(count["status"], "completed");
    let count = server.events(&run).len() as u64;
    for stream in streams {
        assert!(seqs(&stream.rest()).into_iter().eq(2..=count));
    }
}

#[test]
fn streams_over_the_limit_are_refused_until_others_close() {
    let server = Server::alone(&[]);
    let run = two_halves(&server);
    let streams: Vec<Stream> = (0..1_000).map(|_| server.stream(ALL, None)).collect();
    assert_eq!(server.get(&of(&run)).refusal(503), "too_many_streams");
    assert_eq!(server.get(ALL).refusal(503), "too_many_streams");
    drop(streams);
    eventually("another stream can be opened", || {
        (server.try_send("GET", &of("run_x"), &[], b"").ok()?.status == 400).then_some(())
    });
    let mut stream =
        eventually("another stream can be opened", || std::panic::catch_unwind(|| server.stream(&of(&run), None)).ok());
    assert_eq!(stream.next().expect("an event").data["type"], "run.created");
}

/// The identity of an event: its run and its number.
fn name(message: &Message) -> (String, u64) {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    (text(&message.data["run_id"]), message.data["seq"].as_u64().expect("a number"))
}

#[test]
fn the_stream_of_all_runs_begins_now_and_names_the_run_of_each_event() {
    let server = Server::start();
    let workflow = server.workflow("a: {noop: {}}");
    server.finished(&server.trigger(&workflow, &json!({})));
    let mut stream = server.stream(ALL, None);
    let runs: Vec<String> = (0..3).map(|_| server.trigger(&workflow, &json!({}))).collect();
    let mut seen = BTreeSet::new();
    let mut ended = 0;
    while ended < 3 {
        let message = stream.next().expect("an event");
        assert!(runs.iter().any(|run| message.data["run_id"] == **run), "no event from before the stream was opened");
        assert!(message.data["workflow"].as_str().is_some_and(|name| name.starts_with('w')));
        ended += u32::from(message.data["type"] == "run.completed");
        assert!(seen.insert(name(&message)), "the same event twice: {message:?}");
    }
    for run in &runs {
        assert_eq!(seen.iter().filter(|(of, _)| of == run).count(), server.events(run).len());
    }
}

#[test]
fn the_stream_of_all_runs_can_be_filtered() {
    let server = Server::start();
    let (one, other) = (server.workflow("a: {noop: {}}"), server.workflow("a: {noop: {}}"));
    let mut narrow = server.stream(&format!("{ALL}?workflow={one}&type=run.created,run.completed"), None);
    for workflow in [&other, &one, &other, &one] {
        server.finished(&server.trigger(workflow, &json!({})));
    }
    let types: Vec<Value> = (0..4).map(|_| narrow.next().expect("an event").data["type"].clone()).collect();
    assert_eq!(types, ["run.created", "run.completed", "run.created", "run.completed"]);
}

#[test]
fn i4_the_stream_of_all_runs_loses_nothing_over_kills_and_cuts() {
    let mut server = Server::start();
    let workflow = server.workflow("a: {noop: {}}\nb: {noop: {}, needs: [a]}\nc: {sleep: 50ms, needs: [b]}");
    let mut seen = BTreeSet::new();
    let mut runs = Vec::new();
    let mut last: Option<String> = Some("0".into());
    for round in 0..4 {
        let mut stream = server.stream(ALL, last.as_deref());
        runs.extend((0..10).map(|_| server.trigger(&workflow, &json!({ "round": round }))));
        // Read a few messages, then drop the connection.
        for _ in 0..7 {
            seen.insert(name(&stream.next().expect("an event")));
        }
        last.clone_from(&stream.last);
        match round {
            0 | 2 => server.crash_and_restart(),
            _ => drop(stream),
        }
    }
    runs.iter().for_each(|run| drop(server.finished(run)));
    let mut expected = BTreeSet::new();
    for run in &runs {
        expected.extend(server.events(run).iter().map(|event| (run.clone(), event["seq"].as_u64().unwrap())));
    }
    let mut stream = server.stream(ALL, last.as_deref());
    while !expected.is_subset(&seen) {
        seen.insert(name(&stream.next().expect("an event")));
    }
    assert_eq!(seen, expected);
}

#[test]
fn a_server_that_stops_ends_its_streams_at_once() {
    let mut server = Server::with(&["--drain-grace", "30s"]);
    let run = two_halves(&server);
    let mut streams = vec![server.stream(ALL, None), server.stream(&of(&run), None)];
    streams[1].next().expect("it follows");
    let begun = std::time::Instant::now();
    server.ask_to_stop();
    for stream in streams {
        assert!(
            stream.rest().iter().all(|message| message.event.is_none()),
            "the stream is cut, without an end message"
        );
    }
    assert!(server.ended().success());
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
}

use super::*;
use kernel::event::TriggerKind;
use lang::trigger::{Spec, stored};

const SECRET: &str = "a shared secret";
const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

fn webhook(config: Value) -> Webhook {
    match stored(TriggerKind::Webhook, &config.to_string()) {
        Some(Spec::Webhook(webhook)) => *webhook,
        other => panic!("{config}: {other:?}"),
    }
}

fn request(body: &str, headers: &[(&str, &str)]) -> WebhookRequest {
    let headers: Vec<(String, String)> = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    WebhookRequest {
        method: "POST".into(),
        kept: headers.clone(),
        headers,
        body: body.to_owned().into(),
        ..Default::default()
    }
}

fn sign(key: &[u8], text: &str) -> String {
    format!("sha256={}", hex(&mac(key, &[text.as_bytes()]).finalize().into_bytes()))
}

#[test]
fn a_signature_matches_the_documented_example() {
    assert_eq!(sign(b"key", "test"), "sha256=02afb56304902c656fcb737cdd03de6205bb6d401da2812efd9b2d36a08af159");
}

#[test]
fn a13_a_signature_covers_the_bytes_as_received() {
    let hook = webhook(json!({ "secret": SECRET }));
    let body = r#"{"a": 1}"#;
    let right = sign(SECRET.as_bytes(), body);
    for header in ["x-webhook-signature", "x-hub-signature-256"] {
        assert_eq!(request(body, &[(header, &right)]).admit(&hook, NOW), Ok(()), "{header}");
        assert_eq!(request(body, &[(header, &right.to_uppercase().replace("SHA", "sha"))]).admit(&hook, NOW), Ok(()));
        let same_json = request(r#"{"a":1}"#, &[(header, &right)]);
        assert_eq!(same_json.admit(&hook, NOW), Err(Rejection::SignatureWrong), "other bytes");
        let forged = sign(b"another secret", body);
        for wrong in ["", "sha256=", &right[7..], &right[..right.len() - 2], &forged, "sha256=zz", "sha256=é"] {
            let found = request(body, &[(header, wrong)]).admit(&hook, NOW);
            assert_eq!(found, Err(Rejection::SignatureWrong), "{wrong}");
        }
    }
    assert_eq!(request(body, &[]).admit(&hook, NOW), Err(Rejection::SignatureMissing));
    assert_eq!(request("", &[("x-webhook-signature", &sign(SECRET.as_bytes(), ""))]).admit(&hook, NOW), Ok(()));
    assert_eq!(request(body, &[]).admit(&webhook(json!({ "unsigned": true })), NOW), Ok(()));
}

#[test]
fn a_signed_time_must_be_within_the_tolerance() {
    let hook = webhook(json!({ "secret": SECRET }));
    let strict = webhook(json!({ "secret": SECRET, "require_timestamp": true }));
    let at = |seconds: i64| {
        let time = (1_800_000_000 + seconds).to_string();
        let signature = sign(SECRET.as_bytes(), &format!("{time}.body"));
        request("body", &[("x-webhook-timestamp", &time), ("x-webhook-signature", &signature)])
    };
    for near in [0, 300, -300] {
        assert_eq!(at(near).admit(&hook, NOW), Ok(()));
        assert_eq!(at(near).admit(&strict, NOW), Ok(()));
    }
    for far in [301, -301, i64::MAX / 4] {
        assert_eq!(at(far).admit(&hook, NOW), Err(Rejection::TimestampOutside), "{far}");
    }
    let mut moved = at(-400);
    moved.headers[0].1 = "1800000000".into();
    assert_eq!(moved.admit(&hook, NOW), Err(Rejection::SignatureWrong), "the time is part of what is signed");
    let bare = request("body", &[("x-webhook-signature", &sign(SECRET.as_bytes(), "body"))]);
    assert_eq!(bare.admit(&strict, NOW), Err(Rejection::TimestampMissing));
    let github = request("body", &[("x-hub-signature-256", &sign(SECRET.as_bytes(), "body"))]);
    assert_eq!(github.admit(&strict, NOW), Err(Rejection::TimestampMissing));
}

#[test]
fn standard_webhooks_signatures_are_accepted() {
    // The test vector of the Standard Webhooks specification.
    let hook = webhook(json!({ "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" }));
    let now = Timestamp(1_614_265_330_000_000);
    let with = |id: &str, time: &str, signature: &str| {
        let headers = [("webhook-id", id), ("webhook-timestamp", time), ("webhook-signature", signature)];
        request(r#"{"test": 2432232314}"#, &headers)
    };
    let (id, time, right) =
        ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    assert_eq!(with(id, time, right).admit(&hook, now), Ok(()));
    assert_eq!(with(id, time, &format!("v1,AAAA v1a,xx {right} v2,y")).admit(&hook, now), Ok(()), "one of several");
    for (id, time, signature) in [
        ("msg_other", time, right),
        (id, "1614265331", right),
        (id, time, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF="),
        (id, time, "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        (id, time, ""),
    ] {
        assert_eq!(with(id, time, signature).admit(&hook, now), Err(Rejection::SignatureWrong), "{signature}");
    }
    assert_eq!(with(id, time, right).admit(&hook, now.after(Span::from_secs(301))), Err(Rejection::TimestampOutside));
    assert_eq!(with(id, "soon", right).admit(&hook, now), Err(Rejection::TimestampOutside));
    // A secret of one scheme is not accepted as a key of the other.
    let key = hook.standard_key().unwrap();
    let plain = request("x", &[("x-webhook-signature", &sign(&key, "x"))]);
    assert_eq!(plain.admit(&hook, now), Err(Rejection::SignatureMissing));
    let mixed = webhook(json!({ "secret": SECRET }));
    let body = format!("{id}.{time}.x");
    let signature =
        format!("v1,{}", STANDARD.encode(mac(SECRET.as_bytes(), &[body.as_bytes()]).finalize().into_bytes()));
    assert_eq!(with(id, time, &signature).admit(&mixed, now), Err(Rejection::SignatureMissing));
}

#[test]
fn a10_required_headers_must_match_and_are_not_stored() {
    let hook = webhook(json!({ "unsigned": true, "headers": { "X-Token": "letmein" } }));
    assert_eq!(request("", &[("x-token", "letmein")]).admit(&hook, NOW), Ok(()));
    for headers in [&[][..], &[("x-token", "letmeout")], &[("x-token", "")], &[("x-tokens", "letmein")]] {
        assert_eq!(request("", headers).admit(&hook, NOW), Err(Rejection::HeaderMissing));
    }
    let kept = request("body\nwith lines", &[("x-token", "letmein"), ("x-a", "b")]).keep(&hook);
    assert!(!String::from_utf8_lossy(&kept).contains("letmein"));
    let again = WebhookRequest::again(&kept).unwrap();
    assert_eq!((&again.body[..], again.kept.len()), (&b"body\nwith lines"[..], 1));
}

#[test]
fn a18_a_delivery_is_identified_by_its_id_or_else_by_its_bytes() {
    let id = |headers: &[(&str, &str)], dedup| match request("x", headers).identity(dedup) {
        Identity::Given(id) | Identity::Content(id) => Some(id),
        Identity::New => None,
    };
    let all = [("x-webhook-id", "d"), ("x-request-id", "c"), ("x-github-delivery", "b"), ("webhook-id", "a")];
    for (i, expected) in [(0, "a"), (1, "b"), (2, "c"), (3, "d")] {
        assert_eq!(id(&all[..4 - i], Dedup::Auto).as_deref(), Some(expected));
    }
    assert_eq!(id(&[], Dedup::DeliveryId), None);
    assert_eq!(id(&all, Dedup::None), None);
    let hash = id(&[], Dedup::Auto).unwrap();
    assert!(hash.starts_with("sha256-") && hash.len() == 71);
    let mut other = request("x", &[]);
    other.query = "q=1".into();
    assert_ne!(other.identity(Dedup::Auto), Identity::Content(hash));
    for odd in ["a b", "a/b", &"x".repeat(201), "é"] {
        assert!(id(&[("webhook-id", odd)], Dedup::Auto).unwrap().starts_with("sha256-"), "{odd}");
    }
}

#[test]
fn a4_a13_the_payload_is_the_body_with_the_query() {
    let open = webhook(json!({ "unsigned": true }));
    let text = |body: &str, query: &str, media: &str| {
        let mut request = request(body, &[("content-type", media)]);
        request.query = query.into();
        String::from_utf8(request.payload(&open).to_vec()).unwrap()
    };
    for (body, query, media, expected) in [
        (r#"{"a": 1.0}"#, "", "application/json", r#"{"a": 1.0}"#),
        (r#"{"a":1}"#, "q=z&q=y&b=", "text/plain", r#"{"a":1,"query":{"q":["z","y"],"b":""}}"#),
        ("", "", "", "null"),
        ("", "q=z", "", r#"{"query":{"q":"z"}}"#),
        ("[1]", "q=z", "", r#"{"body":[1],"query":{"q":"z"}}"#),
        ("a=1&b=2&b=3", "", "application/x-www-form-urlencoded; charset=utf-8", r#"{"a":"1","b":["2","3"]}"#),
        ("a=1&b=2", "", "text/plain", r#""a=1&b=2""#),
        (r#"{"a": 1"#, "", "application/json", r#""{\"a\": 1""#),
        (r#"{"a": 1, "a": 2}"#, "", "application/json", r#""{\"a\": 1, \"a\": 2}""#),
    ] {
        assert_eq!(text(body, query, media), expected, "{body} {query}");
    }
    let mapping = json!({ "c": "$.a.b.c", "q": "$.query.q", "x": "$.a.x", "one": "$.list.0", "far": "$.list.9" });
    let mapped = webhook(json!({ "unsigned": true, "variable_mapping": mapping }));
    let mut request = request(r#"{"a":{"b":{"c":7}},"list":[1]}"#, &[]);
    request.query = "q=z".into();
    assert_eq!(request.payload(&mapped), r#"{"c":7,"q":"z","one":1}"#);
}

#[test]
fn a_payload_goes_over_the_input_of_its_webhook() {
    let payload =
        |config: Value, body: &str| String::from_utf8(request(body, &[]).payload(&webhook(config)).to_vec()).unwrap();
    let open = json!({ "unsigned": true, "input": { "a": 1, "b": 2 } });
    assert_eq!(payload(open.clone(), r#"{"b": 3}"#), r#"{"a":1,"b":3}"#);
    assert_eq!(payload(open.clone(), ""), r#"{"a":1,"b":2}"#);
    assert_eq!(payload(open, "[1]"), "[1]");
    let mapped = json!({ "unsigned": true, "input": { "a": 1 }, "variable_mapping": { "c": "$.x" } });
    assert_eq!(payload(mapped, r#"{"x": 7}"#), r#"{"a":1,"c":7}"#);
}

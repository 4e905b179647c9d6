//! Webhook triggers: path, authentication, deduplication, and variables from the body.

use super::words;
use crate::codes;
use crate::diagnostic::{Draft, Problems, quoted};
use crate::fields::{self, Fields, Shape, Unit, duration};
use crate::tree::TreeNode;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use kernel::plan::is_signal_name;
use kernel::time::Span;
use serde_json::{Map, Value as Json, json};
use std::ops::Range;

#[derive(Clone, Debug)]
pub struct Webhook {
    /// The path after `/webhooks/`; `None` when the server must generate one.
    pub path: Option<String>,
    pub method: String,
    pub secret: Option<String>,
    /// Keep the stored secret.
    pub keeps_secret: bool,
    pub unsigned: bool,
    /// Headers that a request must have: names in lower case, and values.
    pub headers: Vec<(String, String)>,
    pub dedup: Dedup,
    /// For how long equal requests without a delivery id are one delivery.
    pub dedup_window: Span,
    /// Refuse signatures without a timestamp.
    pub require_timestamp: bool,
    /// Names of variables, each with its path in the payload.
    pub mapping: Vec<(String, Vec<String>)>,
    pub input: Option<Json>,
    /// A request gives a signal to open runs, instead of starting one.
    pub signal: Option<WebhookSignal>,
}

/// Which open runs of the trigger's workflow get a signal: those whose label has the value that the payload has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSignal {
    pub name: String,
    /// Where the value is in the payload.
    pub correlate: Vec<String>,
    pub label: String,
}

words! {
    /// When two deliveries count as the same.
    Dedup {
        /// Same delivery id; without one, same request.
        Auto = "auto",
        /// Same delivery id; without one, every request is new.
        DeliveryId = "delivery_id",
        /// Every request is new.
        None = "none",
    }
}

const SHAPE: Shape = Shape {
    known: &[
        "path",
        "method",
        "secret",
        "has_secret",
        "unsigned",
        "headers",
        "dedup",
        "dedup_window",
        "require_timestamp",
        "variable_mapping",
        "input",
        "signal",
    ],
    later: &[],
    synonyms: &[("url", "path"), ("signing_secret", "secret")],
};
const METHODS: &[(&str, &str)] =
    &[("GET", "GET"), ("POST", "POST"), ("PUT", "PUT"), ("PATCH", "PATCH"), ("DELETE", "DELETE")];
const PATH_MAX: usize = 200;
const SECRET_MIN: usize = 8;
const SECRET_MAX: usize = 1_024;
/// The default of `dedup_window`.
const DEDUP_WINDOW: Span = Span::from_secs(600);
const DEDUP_WINDOW_MAX: Span = Span::from_days(7);
const HEADERS_MAX: usize = 16;
const VARIABLES_MAX: usize = 64;
/// The longest name of a signal or a label.
const NAME_MAX: usize = 80;
/// The prefix of a Standard Webhooks secret.
const WHSEC: &str = "whsec_";
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Webhook {
    /// The key of a Standard Webhooks secret.
    pub fn standard_key(&self) -> Option<Vec<u8>> {
        BASE64.decode(self.secret.as_deref()?.strip_prefix(WHSEC)?).ok()
    }

    pub(super) fn config(&self) -> Json {
        let mut config = self.plain();
        // Earlier releases stored no window, and a stored default must equal theirs.
        if self.dedup_window != DEDUP_WINDOW {
            config.insert("dedup_window".into(), json!(self.dedup_window.to_string()));
        }
        if let Some(secret) = &self.secret {
            config.insert("secret".into(), json!(secret));
        }
        if !self.headers.is_empty() {
            config.insert("headers".into(), self.headers.iter().map(|(n, v)| (n.clone(), json!(v))).collect());
        }
        if !self.mapping.is_empty() {
            config.insert("variable_mapping".into(), self.variable_mapping());
        }
        if let Some(signal) = &self.signal {
            config.insert("signal".into(), signal.shown());
        }
        Json::Object(config)
    }

    /// Only the names of required headers, without their values. The API shows the mapping and the signal beside the
    /// config.
    pub(super) fn shown(&self) -> Json {
        let mut config = self.plain();
        if self.dedup == Dedup::Auto {
            config.insert("dedup_window".into(), json!(self.dedup_window.to_string()));
        }
        config.insert("has_secret".into(), json!(self.secret.is_some()));
        if !self.headers.is_empty() {
            config.insert("headers".into(), self.headers.iter().map(|(name, _)| json!(name)).collect());
        }
        Json::Object(config)
    }

    pub fn variable_mapping(&self) -> Json {
        let path = |keys: &[String]| json!(payload_path(keys));
        self.mapping.iter().map(|(name, keys)| (name.clone(), path(keys))).collect::<Map<_, _>>().into()
    }

    fn plain(&self) -> Map<String, Json> {
        let mut config = Map::new();
        if let Some(path) = &self.path {
            config.insert("path".into(), json!(path));
        }
        config.insert("method".into(), json!(self.method));
        if self.unsigned {
            config.insert("unsigned".into(), json!(true));
        }
        config.insert("dedup".into(), json!(self.dedup.as_str()));
        if self.require_timestamp {
            config.insert("require_timestamp".into(), json!(true));
        }
        config
    }
}

pub(crate) fn read(fields: &Fields<'_>, place: &Range<usize>, problems: &mut Problems<'_>) -> Option<Webhook> {
    fields.check(&SHAPE, problems);
    fields.exclusive("secret", "unsigned", problems);
    let path = fields.get("path").map(|node| path(node, problems));
    let method = fields.get("method").map_or(Some("POST"), |node| fields::word(node, "method", METHODS, problems));
    let secret = fields.get("secret").map(|node| secret(node, problems));
    let mut flag = |name: &str| fields.get(name).map_or(Some(false), |node| fields::boolean(node, name, problems));
    let (keeps_secret, unsigned, require_timestamp) = (flag("has_secret"), flag("unsigned"), flag("require_timestamp"));
    let headers = fields.get("headers").map_or(Some(Vec::new()), |node| headers(node, problems));
    let dedup = fields.get("dedup").map_or(Some(Dedup::Auto), |n| fields::word(n, "dedup", Dedup::WORDS, problems));
    let dedup_window = fields.entry("dedup_window").map_or(Some(DEDUP_WINDOW), |entry| {
        if dedup.is_some_and(|dedup| dedup != Dedup::Auto) {
            let message = "`dedup_window` has a meaning only with `dedup: auto`";
            problems.add(codes::FIELD_NOT_FOR_TRIGGER, &entry.key_span, message);
        }
        let range = (Span::from_secs(1), DEDUP_WINDOW_MAX);
        duration(&entry.value, "dedup_window", Unit::Seconds, range, problems)
    });
    let mapping = fields.get("variable_mapping").map_or(Some(Vec::new()), |node| mapping(node, problems));
    let input = super::optional_input(fields, problems);
    let signal = fields.get("signal").map_or(Some(None), |node| signal(node, problems).map(Some));
    let (keeps_secret, unsigned) = (keeps_secret? && secret.is_none(), unsigned?);
    if secret.is_none() && !unsigned && !keeps_secret {
        let draft = Draft::new(codes::SECRET_REQUIRED, place.clone(), "a webhook needs a field `secret`");
        problems.push(draft.hint("or write `unsigned: true` to take requests from anyone who knows the address"));
        return None;
    }
    Some(Webhook {
        path: path.map_or(Some(None), |path| path.map(Some))?,
        method: method?.to_owned(),
        secret: secret.map_or(Some(None), |secret| secret.map(Some))?,
        keeps_secret: keeps_secret && !unsigned,
        unsigned,
        headers: headers?,
        dedup: dedup?,
        dedup_window: dedup_window?,
        require_timestamp: require_timestamp?,
        mapping: mapping?,
        input: input?,
        signal: signal?,
    })
}

impl WebhookSignal {
    pub fn shown(&self) -> Json {
        json!({ "name": self.name, "correlate": payload_path(&self.correlate), "label": self.label })
    }
}

/// `{"name": "paid", "correlate": "$.order_id", "label": "order"}`.
pub(super) fn signal(node: &TreeNode, problems: &mut Problems<'_>) -> Option<WebhookSignal> {
    let fields = fields::object(node, "signal", problems)?;
    fields.check(&Shape::only(&["name", "correlate", "label"]), problems);
    let mut text = |name: &str| {
        let node = fields.require(name, "`signal`", &node.span, problems)?;
        fields::text(node, name, problems).map(|text| (node, text))
    };
    let (name, correlate, label) = (text("name"), text("correlate"), text("label"));
    let name = name.and_then(|(node, name)| {
        let is_name = is_signal_name(name);
        if !is_name {
            let message = format!("{} is not the name of a signal", quoted(name));
            let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), message);
            problems.push(draft.hint("a name begins with a letter and has up to 80 letters, digits, `_`, `-` and `.`"));
        }
        is_name.then(|| name.to_owned())
    });
    let correlate = correlate.and_then(|(node, path)| keys_of(node, path, problems));
    let label = label.and_then(|(node, label)| {
        let is_label = !label.is_empty() && label.len() <= NAME_MAX && !label.contains(crate::diagnostic::is_hostile);
        if !is_label {
            problems.add(codes::INVALID_VALUE, &node.span, format!("{} is not the name of a label", quoted(label)));
        }
        is_label.then(|| label.to_owned())
    });
    Some(WebhookSignal { name: name?, correlate: correlate?, label: label? })
}

/// The keys of a path such as `$.data.order.id`.
fn keys_of(node: &TreeNode, path: &str, problems: &mut Problems<'_>) -> Option<Vec<String>> {
    let keys: Vec<String> = path.strip_prefix("$.").unwrap_or_default().split('.').map(str::to_owned).collect();
    if keys.iter().any(String::is_empty) || path.len() > 1_024 {
        let message = format!("{} is not a path into the payload", quoted(path));
        let draft = Draft::new(codes::INVALID_MAPPING, node.span.clone(), message);
        problems.push(draft.hint("begin with `$.` and put a dot between keys: `$.order.items.0.id`"));
        return None;
    }
    Some(keys)
}

fn payload_path(keys: &[String]) -> String {
    format!("$.{}", keys.join("."))
}

fn path(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let path = fields::text(node, "path", problems)?;
    let is_known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"/_-".contains(&b);
    let is_good = path.len() <= PATH_MAX && path.bytes().all(is_known) && path.split('/').all(|part| !part.is_empty());
    if !is_good {
        let message = format!("{} is not a webhook path", quoted(path));
        let hint = if path.starts_with('/') {
            "leave out the slash at the beginning".to_owned()
        } else {
            format!("use up to {PATH_MAX} of a-z, 0-9, `_`, `-`, and `/` between parts")
        };
        problems.push(Draft::new(codes::INVALID_WEBHOOK_PATH, node.span.clone(), message).hint(hint));
        return None;
    }
    Some(path.to_owned())
}

/// Messages never quote the secret.
fn secret(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let secret = fields::text(node, "secret", problems)?;
    let count = secret.chars().count();
    let why = match secret.strip_prefix(WHSEC).map(|rest| BASE64.decode(rest)) {
        _ if !(SECRET_MIN..=SECRET_MAX).contains(&count) => {
            format!("`secret` has {count} characters, allowed is {SECRET_MIN} to {SECRET_MAX}")
        }
        Some(Err(_)) => format!("`secret` begins with `{WHSEC}`, but the rest is not base64"),
        Some(Ok(key)) if key.len() < SECRET_MIN => format!("`secret` holds {} bytes after `{WHSEC}`", key.len()),
        _ => return Some(secret.to_owned()),
    };
    problems.add(codes::INVALID_SECRET, &node.span, why);
    None
}

fn headers(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Vec<(String, String)>> {
    let fields = fields::object(node, "headers", problems)?;
    if fields.len() > HEADERS_MAX {
        let message = format!("there are {} headers, the limit is {HEADERS_MAX}", fields.len());
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let headers: Vec<Option<(String, String)>> = fields
        .iter()
        .map(|entry| {
            let value = fields::text(&entry.value, "headers", problems)?;
            let is_name = !entry.key.is_empty() && entry.key.len() <= 100 && entry.key.bytes().all(token);
            if !is_name
                || !(1..=SECRET_MAX).contains(&value.len())
                || value.trim() != value
                || !value.bytes().all(|b| (b' '..=b'~').contains(&b))
            {
                let message = format!("the header {} is not valid", quoted(&entry.key));
                let draft = Draft::new(codes::INVALID_HEADER, entry.key_span.clone(), message);
                problems.push(draft.hint("a name is an HTTP token, a value 1 to 1024 visible ASCII characters"));
                return None;
            }
            Some((entry.key.to_ascii_lowercase(), value.to_owned()))
        })
        .collect();
    headers.into_iter().collect()
}

/// `{"order": "$.data.order.id"}`.
pub(super) fn mapping(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Vec<(String, Vec<String>)>> {
    let fields = fields::object(node, "variable_mapping", problems)?;
    if fields.len() > VARIABLES_MAX {
        let message = format!("there are {} variables, the limit is {VARIABLES_MAX}", fields.len());
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    let variables: Vec<Option<(String, Vec<String>)>> = fields
        .iter()
        .map(|entry| {
            let name = entry.key.as_str();
            let is_name = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
                && name.len() <= 80
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            if !is_name {
                let message = format!("{} is not the name of a variable", quoted(name));
                let draft = Draft::new(codes::INVALID_MAPPING, entry.key_span.clone(), message);
                problems.push(draft.hint("use up to 80 letters, digits, `_` and `-`, beginning with a letter"));
            }
            let path = fields::text(&entry.value, "variable_mapping", problems)?;
            let keys = keys_of(&entry.value, path, problems)?;
            is_name.then(|| (name.to_owned(), keys))
        })
        .collect();
    variables.into_iter().collect()
}

/// A definition without the secret of its webhook, to be stored and shown.
pub(crate) fn without_secret(source: Json) -> Json {
    let Json::Object(fields) = source else { return source };
    let strip = |(name, value): (String, Json)| match value {
        Json::Object(webhook) if name == "webhook" => {
            let keep = |(name, value): (String, Json)| match name.as_str() {
                "secret" => ("has_secret".to_owned(), json!(true)),
                _ => (name, value),
            };
            (name, Json::Object(webhook.into_iter().map(keep).collect()))
        }
        value => (name, value),
    };
    Json::Object(fields.into_iter().map(strip).collect())
}

/// Whether a field of a definition's webhook is left out of the content hash.
pub(crate) fn is_secret(name: &str) -> bool {
    matches!(name, "secret" | "has_secret")
}

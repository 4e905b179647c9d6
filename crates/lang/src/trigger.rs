//! Triggers: schedules, webhooks and manual triggers, as users write them.
//!
//! ```text
//!   POST /triggers {name, type, workflow, config}      ─┐
//!   PATCH /triggers/{t} over what is stored            ─┼─▶ Spec, or every problem
//!   trigger: cron, cron: …   trigger: webhook, webhook: ─┘
//! ```
//!
//! One reader serves all three, and stored triggers too: [`Spec::config`] is JSON with every default filled in, and
//! [`stored`] reads it back. Users can set a secret but never see it: [`Spec::shown`] has `has_secret` instead. A
//! request with `has_secret: true` keeps the stored secret.

use crate::codes;
use crate::cron::{Cron, Zone};
use crate::diagnostic::{Draft, Problems, grouped, quoted};
use crate::fields::{self, Fields, Shape, Unit, duration};
use crate::tree::{TreeNode, Value};
use kernel::event::TriggerKind;
use kernel::time::Span;
use serde_json::{Value as Json, json};

mod request;
mod webhook;

pub use request::{CurrentTrigger, TriggerRequest, change, request};
pub use webhook::{Dedup, Webhook, WebhookSignal};
pub(crate) use webhook::{is_secret, read as webhook, without_secret};

/// A valid trigger.
#[derive(Clone, Debug)]
pub enum Spec {
    Schedule(Box<Schedule>),
    Webhook(Box<Webhook>),
    Manual { input: Option<Json> },
}

#[derive(Clone, Debug)]
pub struct Schedule {
    pub cron: Cron,
    /// As it was written.
    pub text: String,
    pub zone: Zone,
    pub timezone: String,
    pub missed: Missed,
    /// How far back missed fire times are caught up.
    pub missed_window: Span,
    /// With `missed: all`: the most missed fire times that are caught up, the latest ones.
    pub missed_max: Option<u32>,
    pub overlap: Overlap,
    /// Each run starts up to this much after its fire time.
    pub jitter: Span,
    pub input: Option<Json>,
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$what:meta])* $word:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$what])* $word),* }

        impl $name {
            pub(crate) const WORDS: &'static [(&'static str, $name)] = &[$(($text, $name::$word)),*];

            pub fn as_str(self) -> &'static str {
                match self { $($name::$word => $text),* }
            }
        }
    };
}
pub(crate) use words;

words! {
    /// What happens to fire times that were missed while no node was running.
    Missed {
        /// Each one is recorded as skipped.
        Skip = "skip",
        /// One run for the latest one.
        Latest = "latest",
        /// One run for each one, oldest first.
        All = "all",
    }
}

words! {
    /// What happens at a fire time while the previous run is still open.
    Overlap {
        Allow = "allow",
        Skip = "skip",
        Queue = "queue",
    }
}

/// The default of `missed_window`.
const WINDOW: Span = Span::from_days(1);
const WINDOW_MAX: Span = Span::from_days(31);
const MISSED_MAX: i64 = 1_000;
const JITTER_MAX: Span = Span::from_secs(3_600);
/// The most bytes of an `input`, the same as of a body that arrives.
const INPUT_MAX: usize = 256 * 1024;

pub(crate) const SCHEDULE: Shape = Shape {
    known: &["cron", "timezone", "missed", "missed_window", "missed_max", "overlap", "jitter", "input"],
    later: &[],
    synonyms: &[
        ("tz", "timezone"),
        ("timeZone", "timezone"),
        ("expression", "cron"),
        ("schedule", "cron"),
        ("catchup", "missed"),
    ],
};

impl Spec {
    pub fn kind(&self) -> TriggerKind {
        match self {
            Spec::Schedule(_) => TriggerKind::Schedule,
            Spec::Webhook(_) => TriggerKind::Webhook,
            Spec::Manual { .. } => TriggerKind::Manual,
        }
    }

    /// The stored configuration, including secrets.
    pub fn config(&self) -> Json {
        let mut config = match self {
            Spec::Webhook(webhook) => webhook.config(),
            other => other.shown(),
        };
        if let (Some(input), Some(config)) = (self.input(), config.as_object_mut()) {
            config.insert("input".into(), input.clone());
        }
        config
    }

    /// The configuration that users see, without the secret and without the values of required headers. The API shows
    /// `input` beside it.
    pub fn shown(&self) -> Json {
        match self {
            Spec::Schedule(schedule) => schedule.shown(),
            Spec::Webhook(webhook) => webhook.shown(),
            Spec::Manual { .. } => json!({}),
        }
    }

    /// The body of a run for which nothing arrives.
    pub fn input(&self) -> Option<&Json> {
        match self {
            Spec::Schedule(schedule) => schedule.input.as_ref(),
            Spec::Webhook(webhook) => webhook.input.as_ref(),
            Spec::Manual { input } => input.as_ref(),
        }
    }

    fn input_mut(&mut self) -> &mut Option<Json> {
        match self {
            Spec::Schedule(schedule) => &mut schedule.input,
            Spec::Webhook(webhook) => &mut webhook.input,
            Spec::Manual { input } => input,
        }
    }
}

/// The body of a run: what arrived, over the fields of the trigger's `input`.
pub fn body(input: Option<&Json>, arrived: Option<Json>) -> Json {
    match (input, arrived) {
        (Some(Json::Object(input)), Some(Json::Object(arrived))) => {
            input.clone().into_iter().chain(arrived).collect::<serde_json::Map<_, _>>().into()
        }
        (_, Some(arrived)) => arrived,
        (Some(input), None) => input.clone(),
        (None, None) => json!({}),
    }
}

impl Schedule {
    fn shown(&self) -> Json {
        let mut shown = json!({
            "cron": self.text, "timezone": self.timezone, "missed": self.missed.as_str(),
            "missed_window": self.missed_window.to_string(), "overlap": self.overlap.as_str(),
            "jitter": self.jitter.to_string(),
        });
        if let Some(most) = self.missed_max {
            shown["missed_max"] = json!(most);
        }
        shown
    }
}

/// Reads the output of [`Spec::config`]; `None` for anything else.
pub fn stored(kind: TriggerKind, config: &str) -> Option<Spec> {
    let tree = crate::read(config.as_bytes(), crate::Syntax::Json).ok()?;
    let mut problems = Problems::new(tree.source());
    let spec = spec(kind, Some(tree.root()), &(0..0), &mut problems)?;
    problems.is_empty().then_some(spec)
}

/// A trigger's config, by its kind.
fn spec(
    kind: TriggerKind,
    config: Option<&TreeNode>,
    place: &std::ops::Range<usize>,
    problems: &mut Problems<'_>,
) -> Option<Spec> {
    let what = format!("a {} trigger", kind.as_str());
    if kind == TriggerKind::Manual {
        let Some(config) = config else { return Some(Spec::Manual { input: None }) };
        let fields = fields::object(config, "config", problems)?;
        fields.check(&Shape::only(&["input"]), problems);
        return Some(Spec::Manual { input: optional_input(&fields, problems)? });
    }
    let Some(config) = config else {
        problems.add(codes::MISSING_FIELD, place, format!("{what} needs a field `config`"));
        return None;
    };
    let fields = fields::object(config, "config", problems)?;
    match kind {
        TriggerKind::Schedule => {
            fields.check(&SCHEDULE, problems);
            let cron = fields.require("cron", &what, &config.span, problems);
            let spec = schedule(cron, fields.get("timezone"), &fields, problems)?;
            Some(Spec::Schedule(Box::new(spec)))
        }
        _ => Some(Spec::Webhook(Box::new(webhook(&fields, &config.span, problems)?))),
    }
}

/// A schedule; `fields` has its policies.
pub(crate) fn schedule(
    cron: Option<&TreeNode>,
    timezone: Option<&TreeNode>,
    fields: &Fields<'_>,
    problems: &mut Problems<'_>,
) -> Option<Schedule> {
    let parsed = cron.and_then(|node| {
        let text = fields::text(node, "cron", problems)?;
        match Cron::parse(text) {
            Ok(cron) => Some((cron, text.to_owned())),
            Err(found) => {
                found.into_iter().for_each(|problem| problems.push_inside(node, text, problem));
                None
            }
        }
    });
    let zone = match timezone {
        Some(node) => zone(node, problems),
        None => Zone::get(Zone::UTC).map(|zone| (zone, Zone::UTC.to_owned())),
    };
    let missed =
        fields.get("missed").map_or(Some(Missed::Latest), |n| fields::word(n, "missed", Missed::WORDS, problems));
    let missed_max = fields.get("missed_max").map_or(Some(None), |node| {
        if missed.is_some_and(|missed| missed != Missed::All) {
            let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), "`missed_max` limits `missed: all`");
            problems.push(draft.hint("add `missed: all`, or remove it"));
            return None;
        }
        fields::whole(node, "missed_max", 1..=MISSED_MAX, problems).map(|most| Some(most as u32))
    });
    let overlap =
        fields.get("overlap").map_or(Some(Overlap::Allow), |n| fields::word(n, "overlap", Overlap::WORDS, problems));
    let mut span = |name: &str, default: Span, most: Span| match fields.get(name) {
        Some(node) => duration(node, name, Unit::Seconds, (Span(0), most), problems),
        None => Some(default),
    };
    let (missed_window, jitter) = (span("missed_window", WINDOW, WINDOW_MAX), span("jitter", Span(0), JITTER_MAX));
    let input = optional_input(fields, problems);
    let ((cron, text), (zone, timezone)) = (parsed?, zone?);
    Some(Schedule {
        cron,
        text,
        zone,
        timezone,
        missed: missed?,
        missed_window: missed_window?,
        missed_max: missed_max?,
        overlap: overlap?,
        jitter: jitter?,
        input: input?,
    })
}

fn optional_input(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Option<Json>> {
    fields.get("input").map_or(Some(None), |node| input(node, problems).map(Some))
}

/// The `input` of a trigger: any JSON but null, which would say the same as no input.
fn input(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Json> {
    if matches!(node.value, Value::Null) {
        problems.push(fields::wrong_type(node, "input", "the body of a run"));
        return None;
    }
    let input = node.to_json();
    let len = input.to_string().len();
    if len > INPUT_MAX {
        let message = format!("`input` has {} bytes, the limit is {}", grouped(len), grouped(INPUT_MAX));
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    Some(input)
}

fn zone(node: &TreeNode, problems: &mut Problems<'_>) -> Option<(Zone, String)> {
    let name = fields::text(node, "timezone", problems)?;
    if let Some(zone) = Zone::get(name) {
        return Some((zone, name.to_owned()));
    }
    let names = Zone::names();
    let hint = problems.suggest(name, names.iter().map(String::as_str));
    let draft = Draft::new(codes::UNKNOWN_TIMEZONE, node.span.clone(), format!("{} is not a time zone", quoted(name)));
    problems.push(draft.hint(hint.unwrap_or_else(|| "use a name such as `Europe/Berlin` or `Etc/UTC`".to_owned())));
    None
}

#[cfg(test)]
mod tests;

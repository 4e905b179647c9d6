//! The trigger data of a run, and what its steps must send because of it. The data looks like templates, and
//! a correct engine never evaluates it as one.
//!
//! Invariant: the expected requests are computed here, without the kernel.

use super::random::Random;
use super::workflow_generator::TriggerPart;
use bytes::Bytes;
use kernel::Timestamp;
use kernel::advance::Work;
use kernel::payload::INLINE_MAX;

/// Data that looks like a template.
const NOTES: [&str; 5] =
    ["plain", "{{trigger.body.secret}}", "a {{ trigger.body.flag }} b", "{{trigger.body.missing}}", "{{ not closed"];

/// The template of a concurrency key. The literal text is part of what a seed means: runs of different groups
/// are visited in the order of a hash of their keys.
pub const GROUP_KEY: &str = "lane-{{trigger.body.group}}";

#[derive(Clone, Debug)]
pub struct Trigger {
    pub flag: bool,
    /// The body is too large for a record.
    pub is_large: bool,
    note: &'static str,
    /// Runs of one workflow with the same group share its concurrency limit.
    pub group: u64,
    /// Defaults for the tasks of the run.
    pub priority: Option<u32>,
    pub key: &'static str,
    pub run_at: Option<Timestamp>,
    /// The body was filled in by the step that started the run.
    pub is_from_parent: bool,
}

impl Trigger {
    pub fn draw(random: &mut Random, group: u64) -> Trigger {
        let (flag, is_large, note) = (random.coin(), random.chance(250), random.pick(&NOTES));
        Trigger { flag, is_large, note, group, priority: None, key: "", run_at: None, is_from_parent: false }
    }

    pub fn body(&self) -> Bytes {
        let pad = "x".repeat(if self.is_large { INLINE_MAX } else { 5 });
        let Trigger { flag, note, group, .. } = self;
        let body = format!(r#"{{"flag":{flag},"note":"{note}","group":{group},"secret":"hush","pad":"{pad}"}}"#);
        if !self.is_from_parent {
            return body.into();
        }
        let value: serde_json::Value = serde_json::from_str(&body).expect("the body is JSON");
        value.to_string().into()
    }

    /// The trigger of a run that a step of this one starts, with the same body.
    pub fn of_child(&self) -> Trigger {
        Trigger { priority: None, key: "", run_at: None, is_from_parent: true, ..self.clone() }
    }

    /// What [`GROUP_KEY`] evaluates to.
    pub fn group_key(&self) -> String {
        format!("lane-{}", self.group)
    }

    /// The input that a worker must get for a step that reads `reads`. A step without a template gets the
    /// whole body.
    pub fn task_input(&self, reads: TriggerPart) -> Bytes {
        match reads {
            TriggerPart::Nothing | TriggerPart::NoteInUrl => self.body(),
            TriggerPart::Flag => self.flag.to_string().into(),
            TriggerPart::Note => format!("\"{}\"", self.note).into(),
            TriggerPart::NoteInText => format!("\"note: {}!\"", self.note).into(),
        }
    }

    /// Is this the request that a step which reads `reads` must send?
    pub fn matches_request(&self, reads: TriggerPart, work: &Work) -> bool {
        let Work::Http(request) = work else { return false };
        let (path, body) = match reads {
            TriggerPart::Nothing => (String::new(), None),
            TriggerPart::Flag => (String::new(), Some(self.flag.to_string())),
            TriggerPart::Note => (String::new(), Some(self.note.to_owned())),
            TriggerPart::NoteInText => (String::new(), Some(format!("note: {}!", self.note))),
            TriggerPart::NoteInUrl => (percent_encoded(self.note), None),
        };
        let sent = request.body.as_ref().map(|(bytes, _)| &bytes[..]);
        request.url == format!("http://upstream/{path}") && sent == body.as_deref().map(str::as_bytes)
    }
}

fn percent_encoded(text: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|b| if is_unreserved(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect()
}

//! Following a run: server-sent events, read as they come.
//!
//! Every event has a number, so a stream that breaks is opened again after the last one that was seen:
//! nothing is left out and nothing is told twice.

use crate::{Ask, Client, Error, Result};
use api::StreamEventView;
use std::time::Duration;

/// One event is never larger.
const EVENT_MAX: usize = 16 * 1024 * 1024;
/// A stream that brings nothing new is opened again this often, this long after it broke.
const REOPENINGS_MAX: u32 = 30;
const REOPEN_AFTER: Duration = Duration::from_millis(500);

/// The events of a run, in order, until it has ended.
pub struct Events {
    client: Client,
    path: String,
    last: u64,
    response: Option<reqwest::Response>,
    reader: Reader,
    reopenings: u32,
}

impl Events {
    pub(crate) async fn open(client: Client, path: String, after: u64) -> Result<Events> {
        let mut events = Events { client, path, last: after, response: None, reader: Reader::default(), reopenings: 0 };
        events.connect().await?;
        Ok(events)
    }

    async fn connect(&mut self) -> Result<()> {
        let mut ask = Ask::get(self.path.clone()).header("accept", Some("text/event-stream"));
        if self.last > 0 {
            ask = ask.header("last-event-id", Some(&self.last.to_string()));
        }
        let response = self.client.request(ask).send().await.map_err(|e| self.client.unreachable(&e))?;
        let status = response.status();
        if !status.is_success() {
            let bytes = response.bytes().await.map_err(|e| self.client.unreachable(&e))?;
            return Err(self.client.refusal(status, &bytes));
        }
        self.reader = Reader::default();
        self.response = Some(response);
        Ok(())
    }

    /// The next event; `None` once the run has ended and everything was told. May be given up and called
    /// again: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<StreamEventView>> {
        loop {
            while let Some(message) = self.reader.message() {
                if message.event == "end" {
                    return Ok(None);
                }
                if message.data.is_empty() {
                    continue;
                }
                let told: StreamEventView =
                    serde_json::from_str(&message.data).map_err(|e| self.client.strange(e.to_string()))?;
                if told.event.seq > self.last {
                    (self.last, self.reopenings) = (told.event.seq, 0);
                    return Ok(Some(told));
                }
            }
            let chunk = match &mut self.response {
                Some(response) => response.chunk().await,
                None => Ok(None),
            };
            match chunk {
                Ok(Some(bytes)) => {
                    self.reader.push(&bytes).map_err(|()| self.client.strange("too much at once".into()))?
                }
                Ok(None) | Err(_) => self.again().await?,
            }
        }
    }

    /// Opens the stream again: a server that is being started anew gets a while for it.
    async fn again(&mut self) -> Result<()> {
        self.response = None;
        loop {
            self.reopenings += 1;
            tokio::time::sleep(REOPEN_AFTER).await;
            match self.connect().await {
                Ok(()) if self.reopenings < REOPENINGS_MAX => return Ok(()),
                Ok(()) => {
                    let reason = "the stream ends again and again before the run does".into();
                    return Err(Error::Unreachable { url: self.client.base.clone(), reason });
                }
                Err(Error::Unreachable { .. } | Error::Refused { status: 503, .. })
                    if self.reopenings < REOPENINGS_MAX => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[derive(Default, Debug, PartialEq)]
struct Message {
    event: String,
    data: String,
}

/// Takes bytes as they come, gives whole messages.
#[derive(Default)]
struct Reader {
    bytes: Vec<u8>,
}

impl Reader {
    fn push(&mut self, bytes: &[u8]) -> std::result::Result<(), ()> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > EVENT_MAX { Err(()) } else { Ok(()) }
    }

    /// A message ends with an empty line. Lines may end with CR, LF or both, as the format allows; ours
    /// end with LF.
    fn message(&mut self) -> Option<Message> {
        let text = std::str::from_utf8(&self.bytes).map_or_else(|e| e.valid_up_to(), |text| text.len());
        let text = std::str::from_utf8(&self.bytes[..text]).unwrap_or_default();
        let (end, width) = ["\n\n", "\r\n\r\n"].iter().filter_map(|gap| Some((text.find(gap)?, gap.len()))).min()?;
        let mut message = Message::default();
        for line in text[..end].lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => message.event = value.to_owned(),
                "data" if message.data.is_empty() => message.data = value.to_owned(),
                "data" => message.data.extend(["\n", value]),
                _ => {}
            }
        }
        self.bytes.drain(..end + width);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str, chunk: usize) -> Vec<(String, String)> {
        let mut reader = Reader::default();
        let mut out = Vec::new();
        for bytes in text.as_bytes().chunks(chunk) {
            reader.push(bytes).unwrap();
            while let Some(Message { event, data }) = reader.message() {
                out.push((event, data));
            }
        }
        out
    }

    #[test]
    fn messages_are_whole_however_the_bytes_come() {
        let text =
            ": hello\n\nid: 1\ndata: {\"a\": \"é😀\"}\n\nevent: end\ndata:\n\r\n\r\ndata: x\ndata:  y\r\n\r\nhalf: ";
        let expected: Vec<(String, String)> =
            [("", ""), ("", "{\"a\": \"é😀\"}"), ("end", ""), ("", "x\n y")].map(|(a, b)| (a.into(), b.into())).into();
        for chunk in [1, 2, 3, 7, 1000] {
            let found: Vec<_> = messages(text, chunk).into_iter().filter(|m| *m != Default::default()).collect();
            assert_eq!(found, expected[1..], "in chunks of {chunk}");
        }
    }
}

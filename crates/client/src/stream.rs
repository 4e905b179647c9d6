//! The events of a run as a stream of server-sent events.
//!
//! Every event has a number, so a stream that breaks is reopened after the last event that was received. No event is
//! missing and none is returned twice.

use crate::{Client, Error, RequestBuilder, Result};
use api::StreamEventView;
use std::time::Duration;

/// No event is larger than a run may be.
const EVENT_MAX: usize = 16 * 1024 * 1024;
/// How often a stream is reopened without a new event in between, and how long after it broke.
const REOPENINGS_MAX: u32 = 30;
const REOPEN_AFTER: Duration = Duration::from_millis(500);

/// The events of a run, in order, until it has ended.
pub struct Events {
    client: Client,
    path: String,
    last: u64,
    response: Option<reqwest::Response>,
    reader: StreamReader,
    reopenings: u32,
}

impl Events {
    pub(crate) async fn open(client: Client, path: String, after: u64) -> Result<Events> {
        let mut events =
            Events { client, path, last: after, response: None, reader: StreamReader::default(), reopenings: 0 };
        events.connect().await?;
        Ok(events)
    }

    async fn connect(&mut self) -> Result<()> {
        let mut request = RequestBuilder::get(self.path.clone()).header("accept", Some("text/event-stream"));
        if self.last > 0 {
            request = request.header("last-event-id", Some(&self.last.to_string()));
        }
        let response = self.client.http_request(request).send().await.map_err(|e| self.client.unreachable(&e))?;
        let status = response.status();
        if !status.is_success() {
            let bytes = response.bytes().await.map_err(|e| self.client.unreachable(&e))?;
            return Err(self.client.refusal(status, &bytes));
        }
        self.reader = StreamReader::default();
        self.response = Some(response);
        Ok(())
    }

    /// The next event; `None` after the last event of a run that has ended. The future may be dropped and called again:
    /// no event is lost.
    pub async fn next(&mut self) -> Result<Option<StreamEventView>> {
        loop {
            while let Some(message) = self.reader.message() {
                if message.event == "end" {
                    return Ok(None);
                }
                if message.data.is_empty() {
                    continue;
                }
                let received: StreamEventView =
                    serde_json::from_str(&message.data).map_err(|e| self.client.unexpected(e.to_string()))?;
                if received.event.seq > self.last {
                    (self.last, self.reopenings) = (received.event.seq, 0);
                    return Ok(Some(received));
                }
            }
            let chunk = match &mut self.response {
                Some(response) => response.chunk().await,
                None => Ok(None),
            };
            match chunk {
                Ok(Some(bytes)) => {
                    self.reader.push(&bytes).map_err(|()| self.client.unexpected("an event is too large".into()))?
                }
                Ok(None) | Err(_) => self.reopen().await?,
            }
        }
    }

    /// Opens the stream again, several times if needed: a server may be restarting.
    async fn reopen(&mut self) -> Result<()> {
        self.response = None;
        loop {
            self.reopenings += 1;
            tokio::time::sleep(REOPEN_AFTER).await;
            match self.connect().await {
                Ok(()) if self.reopenings < REOPENINGS_MAX => return Ok(()),
                Ok(()) => {
                    let reason = "the stream ended several times before the run did".into();
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
struct StreamMessage {
    event: String,
    data: String,
}

/// Splits the received bytes into messages.
#[derive(Default)]
struct StreamReader {
    bytes: Vec<u8>,
}

impl StreamReader {
    fn push(&mut self, bytes: &[u8]) -> std::result::Result<(), ()> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > EVENT_MAX { Err(()) } else { Ok(()) }
    }

    /// The next complete message. A message ends with an empty line. The server ends lines with LF; CRLF is accepted, too,
    /// as the format allows.
    fn message(&mut self) -> Option<StreamMessage> {
        let text = std::str::from_utf8(&self.bytes).map_or_else(|e| e.valid_up_to(), |text| text.len());
        let text = std::str::from_utf8(&self.bytes[..text]).unwrap_or_default();
        let (end, width) = ["\n\n", "\r\n\r\n"].iter().filter_map(|gap| Some((text.find(gap)?, gap.len()))).min()?;
        let mut message = StreamMessage::default();
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
        let mut reader = StreamReader::default();
        let mut out = Vec::new();
        for bytes in text.as_bytes().chunks(chunk) {
            reader.push(bytes).unwrap();
            while let Some(StreamMessage { event, data }) = reader.message() {
                out.push((event, data));
            }
        }
        out
    }

    #[test]
    fn messages_are_complete_in_any_chunking() {
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

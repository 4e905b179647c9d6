//! Where a reply of the mailbox goes.

use crate::mailbox::Reply;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// To somebody who waits for it, or to its place among several that are waited for together.
pub enum ReplyChannel {
    One(oneshot::Sender<Reply>),
    SharedReply(SharedReply),
}

impl ReplyChannel {
    /// Gives the reply back when nobody is there to take it.
    pub fn send(self, reply: Reply) -> Result<(), Reply> {
        match self {
            ReplyChannel::One(sender) => sender.send(reply),
            ReplyChannel::SharedReply(part) => {
                part.put(reply);
                Ok(())
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        match self {
            ReplyChannel::One(sender) => sender.is_closed(),
            ReplyChannel::SharedReply(_) => false,
        }
    }
}

/// Replies in the order they were asked for; nothing where the loop stopped before it could answer.
pub type Replies = Vec<Option<Reply>>;

/// Replies that go out together once the last is there: a thousand reports of a worker wake it once.
struct Collection {
    replies: Mutex<Replies>,
    left: AtomicUsize,
    whole: Mutex<Option<oneshot::Sender<Replies>>>,
}

/// One place in a collection. Letting go of it counts as an answer, or nobody would get any.
pub struct SharedReply {
    of: Arc<Collection>,
    index: usize,
}

impl SharedReply {
    fn put(self, reply: Reply) {
        if let Some(slot) = self.of.replies.lock().unwrap_or_else(|e| e.into_inner()).get_mut(self.index) {
            *slot = Some(reply);
        }
    }
}

impl Drop for SharedReply {
    fn drop(&mut self) {
        if self.of.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let replies = std::mem::take(&mut *self.of.replies.lock().unwrap_or_else(|e| e.into_inner()));
        if let Some(whole) = self.of.whole.lock().unwrap_or_else(|e| e.into_inner()).take() {
            let _ = whole.send(replies);
        }
    }
}

/// Tickets for `count` replies that are waited for together. Without any, the receiver never hears anything.
pub fn shared(count: usize) -> (impl Iterator<Item = ReplyChannel>, oneshot::Receiver<Replies>) {
    let (sender, receiver) = oneshot::channel();
    let replies = Mutex::new((0..count).map(|_| None).collect());
    let of = Arc::new(Collection { replies, left: AtomicUsize::new(count), whole: Mutex::new(Some(sender)) });
    ((0..count).map(move |index| ReplyChannel::SharedReply(SharedReply { of: of.clone(), index })), receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reply_brings_all_of_them_in_order() {
        let (reply_channel, mut whole) = shared(3);
        let mut reply_channel: Vec<ReplyChannel> = reply_channel.collect();
        let last = reply_channel.pop();
        assert!(last.is_some_and(|t| t.send(Reply::NotFound).is_ok()));
        assert!(whole.try_recv().is_err(), "two are missing");
        drop(reply_channel.pop());
        assert!(reply_channel.pop().is_some_and(|t| t.send(Reply::Undone).is_ok()));
        assert_eq!(whole.try_recv().ok(), Some(vec![Some(Reply::Undone), None, Some(Reply::NotFound)]));
    }
}

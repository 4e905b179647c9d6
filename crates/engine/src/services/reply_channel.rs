//! Reply channels: where the mailbox sends the reply to a command.

use crate::mailbox::Reply;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Goes to one waiting caller, or into one slot of a list of replies that a caller waits for together.
pub enum ReplyChannel {
    One(oneshot::Sender<Reply>),
    SharedReply(SharedReply),
}

impl ReplyChannel {
    /// Returns the reply if the caller has hung up.
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

/// Replies in the order of their commands; `None` where the reply channel was dropped without an answer.
pub type Replies = Vec<Option<Reply>>;

/// Replies that are sent together once the last one is there: a thousand reports of a worker wake its request once.
struct Collection {
    replies: Mutex<Replies>,
    left: AtomicUsize,
    all: Mutex<Option<oneshot::Sender<Replies>>>,
}

/// One slot of a collection. Dropping it counts as an answer; otherwise the caller would wait forever.
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
        if let Some(all) = self.of.all.lock().unwrap_or_else(|e| e.into_inner()).take() {
            let _ = all.send(replies);
        }
    }
}

/// Reply channels for `count` replies that a caller waits for together. With `count` 0 the receiver gets nothing but
/// an error.
pub fn shared(count: usize) -> (impl Iterator<Item = ReplyChannel>, oneshot::Receiver<Replies>) {
    let (sender, receiver) = oneshot::channel();
    let replies = Mutex::new((0..count).map(|_| None).collect());
    let of = Arc::new(Collection { replies, left: AtomicUsize::new(count), all: Mutex::new(Some(sender)) });
    ((0..count).map(move |index| ReplyChannel::SharedReply(SharedReply { of: of.clone(), index })), receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reply_sends_all_of_them_in_order() {
        let (channels, mut all) = shared(3);
        let mut channels: Vec<ReplyChannel> = channels.collect();
        let last = channels.pop();
        assert!(last.is_some_and(|channel| channel.send(Reply::NotFound).is_ok()));
        assert!(all.try_recv().is_err(), "two are missing");
        drop(channels.pop());
        assert!(channels.pop().is_some_and(|channel| channel.send(Reply::Undone).is_ok()));
        assert_eq!(all.try_recv().ok(), Some(vec![Some(Reply::Undone), None, Some(Reply::NotFound)]));
    }
}

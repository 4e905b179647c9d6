//! Where a reply of the mailbox goes.

use crate::mailbox::Reply;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// To somebody who waits for it, or to its place among several that are waited for together.
pub enum Ticket {
    One(oneshot::Sender<Reply>),
    Part(Part),
}

impl Ticket {
    /// Gives the reply back when nobody is there to take it.
    pub fn send(self, reply: Reply) -> Result<(), Reply> {
        match self {
            Ticket::One(sender) => sender.send(reply),
            Ticket::Part(part) => {
                part.put(reply);
                Ok(())
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        match self {
            Ticket::One(sender) => sender.is_closed(),
            Ticket::Part(_) => false,
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
pub struct Part {
    of: Arc<Collection>,
    place: usize,
}

impl Part {
    fn put(self, reply: Reply) {
        if let Some(slot) = self.of.replies.lock().unwrap_or_else(|e| e.into_inner()).get_mut(self.place) {
            *slot = Some(reply);
        }
    }
}

impl Drop for Part {
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
pub fn tickets(count: usize) -> (impl Iterator<Item = Ticket>, oneshot::Receiver<Replies>) {
    let (sender, receiver) = oneshot::channel();
    let replies = Mutex::new((0..count).map(|_| None).collect());
    let of = Arc::new(Collection { replies, left: AtomicUsize::new(count), whole: Mutex::new(Some(sender)) });
    ((0..count).map(move |place| Ticket::Part(Part { of: of.clone(), place })), receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reply_brings_all_of_them_in_order() {
        let (tickets, mut whole) = tickets(3);
        let mut tickets: Vec<Ticket> = tickets.collect();
        let last = tickets.pop();
        assert!(last.is_some_and(|t| t.send(Reply::NotFound).is_ok()));
        assert!(whole.try_recv().is_err(), "two are missing");
        drop(tickets.pop());
        assert!(tickets.pop().is_some_and(|t| t.send(Reply::Undone).is_ok()));
        assert_eq!(whole.try_recv().ok(), Some(vec![Some(Reply::Undone), None, Some(Reply::NotFound)]));
    }
}

//! Keeping processors awake while somebody asks one thing after the other.
//!
//! An idle processor of a virtual machine is given back to the host, and it takes 20 to 50 µs to get it again. One request sleeps
//! four times: for both halves of a sync, for the answer and for the next question. So there are watchers, threads of the lowest
//! priority that only turn round: whoever is woken gets the processor from them at once, and it was never given back.
//!
//! On small machines there is one for each processor; on larger ones a single one goes where the thread is that answers. The rule
//! that keeps it decent: they turn round only while they are told to again and again, and never where processor time is rationed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Without being told again, watchers go to sleep after this.
const PATIENCE: Duration = Duration::from_millis(1);
/// Machines with more processors than this have one watcher.
const SMALL: usize = 2;
/// Looks at nothing in between: some microseconds.
const TURNS: u32 = 64;

pub struct Awake {
    wish: Arc<Wish>,
    watchers: Vec<Thread>,
}

/// What watchers are to do.
struct Wish {
    began: Instant,
    /// In nanoseconds since it began.
    until: AtomicU64,
    /// Where the thread is that answers.
    processor: AtomicUsize,
    is_over: AtomicBool,
}

impl Wish {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn is_on(&self) -> bool {
        self.now() < self.until.load(Relaxed)
    }
}

/// The processor that a watcher keeps awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Post {
    At(usize),
    /// Wherever the thread is that answers.
    Beside,
}

impl Awake {
    /// With watchers, unless they are not wanted or would use up what is rationed.
    pub fn new(is_wanted: bool) -> Awake {
        let (began, until, processor) = (Instant::now(), AtomicU64::new(0), AtomicUsize::new(0));
        let wish = Arc::new(Wish { began, until, processor, is_over: AtomicBool::new(false) });
        let rationed_to = std::thread::available_parallelism().map_or(0, |n| n.get());
        let posts = if is_wanted { posts(&system::processors(), rationed_to) } else { Vec::new() };
        let start = |(n, post): (usize, Post)| {
            let wish = wish.clone();
            std::thread::Builder::new().name(format!("awake-{n}")).spawn(move || watch(&wish, post))
        };
        let started = posts.into_iter().enumerate().filter_map(|post| start(post).ok());
        let watchers = started.map(|watcher| watcher.thread().clone()).collect();
        Awake { wish, watchers }
    }

    /// Is there nobody to keep anything awake?
    pub fn is_off(&self) -> bool {
        self.watchers.is_empty()
    }

    /// From now on, for a moment.
    pub fn keep(&self) {
        let now = self.wish.now();
        self.wish.processor.store(system::processor(), Relaxed);
        let until = self.wish.until.swap(now + PATIENCE.as_nanos() as u64, Relaxed);
        if until <= now {
            self.watchers.iter().for_each(Thread::unpark);
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.wish.until.store(0, Relaxed);
        self.wish.is_over.store(true, Relaxed);
        self.watchers.iter().for_each(Thread::unpark);
    }
}

/// The posts on a machine with these processors, of which so many may be used up.
fn posts(processors: &[usize], rationed_to: usize) -> Vec<Post> {
    match processors.len() {
        all if all != rationed_to => Vec::new(),
        all if all <= SMALL => processors.iter().copied().map(Post::At).collect(),
        _ => vec![Post::Beside],
    }
}

/// What a watcher does. One that cannot have the lowest priority, or the place it wants, would be in the way.
fn watch(wish: &Wish, post: Post) {
    if !system::step_back() {
        return;
    }
    let mut place = None;
    while !wish.is_over.load(Relaxed) {
        if !wish.is_on() {
            std::thread::park();
            continue;
        }
        let wanted = match post {
            Post::At(processor) => processor,
            Post::Beside => wish.processor.load(Relaxed),
        };
        if place != Some(wanted) {
            if !system::go_to(wanted) {
                return;
            }
            place = Some(wanted);
        }
        (0..TURNS).for_each(|_| std::hint::spin_loop());
    }
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
    use thread_priority::{
        NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
        thread_native_id,
    };

    /// Those this process may use.
    pub fn processors() -> Vec<usize> {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        (0..CpuSet::MAX_CPU).filter(|n| allowed.is_set(*n)).collect()
    }

    /// Where this thread is.
    pub fn processor() -> usize {
        sched_getcpu()
    }

    /// Moves this thread.
    pub fn go_to(processor: usize) -> bool {
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only).is_ok()
    }

    /// Makes this thread give way to every other at once. (One that is merely nice keeps the processor for up to a millisecond.)
    pub fn step_back() -> bool {
        let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy).is_ok()
    }
}

/// Elsewhere nobody gives way so quickly, so there are no watchers.
#[cfg(not(target_os = "linux"))]
mod system {
    pub fn processors() -> Vec<usize> {
        Vec::new()
    }

    pub fn processor() -> usize {
        0
    }

    pub fn go_to(_: usize) -> bool {
        false
    }

    pub fn step_back() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_few_watchers_and_none_where_time_is_rationed() {
        assert_eq!(posts(&[0], 1), [Post::At(0)]);
        assert_eq!(posts(&[2, 5], 2), [Post::At(2), Post::At(5)]);
        assert_eq!(posts(&[0, 1, 2, 3], 4), [Post::Beside]);
        assert_eq!(posts(&[0, 1], 1), [], "a container that may use one of two");
        assert_eq!(posts(&[0, 1, 2, 3], 2), []);
        assert_eq!(posts(&[], 0), [], "nobody knows");
    }

    #[test]
    fn watchers_turn_round_for_a_moment_only() {
        let awake = Awake::new(true);
        assert!(!awake.wish.is_on(), "nobody has told them to");
        awake.keep();
        let until = awake.wish.until.load(Relaxed);
        assert!(until > 0 && until <= awake.wish.now() + PATIENCE.as_nanos() as u64);
        std::thread::sleep(PATIENCE);
        assert!(!awake.wish.is_on());
        assert!(Awake::new(false).is_off());
    }
}

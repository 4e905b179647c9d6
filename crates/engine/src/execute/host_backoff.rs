//! Circuit breaker for hosts that are down, per organisation and origin. Time is an argument: nothing here waits, sends
//! or decides the outcome of a step.
//!
//! A host counts as down after [`FAILURES`] failures in a row from [`RUNS`] different runs. So a single run with a
//! quick retry policy is never slowed down by its own failures. Requests to a down host are blocked for a while. Then
//! one request goes out as a probe, and the others are blocked a little longer. A failed probe doubles the block; any
//! response that is not a failure ends it. Probes are attempts of real steps and are charged as such, so steps take
//! turns: a step that has probed lets others go first.
//!
//! Independent of that, a `Retry-After` of a host blocks the other runs too, for a minute at most.

use kernel::{OrgId, RunId, Span, Timestamp};
use std::collections::{BTreeMap, HashMap};

const FAILURES: u32 = 8;
const RUNS: usize = 3;
const BLOCK_MIN: Span = Span::from_secs(5);
const BLOCK_MAX: Span = Span::from_secs(300);
/// A request that comes while a probe is under way is blocked for this long, or for as long as the probe has taken.
const AGAIN: Span = Span::from_secs(1);
/// A probe whose response is later than its timeout by this much is not waited for.
const PROBE_LOST_AFTER: Span = Span::from_secs(10);
/// How long after a block other steps go before a step that has already probed.
const PROBED_WAIT: Span = Span::from_secs(2);
/// Steps that are remembered to have probed.
const PROBED_MAX: usize = 256;
const RETRY_AFTER_MAX: Span = Span::from_secs(60);
/// Hosts remembered; when the table is full, the least recently used one is dropped.
const HOSTS_MAX: usize = 10_000;

/// An organisation and an origin: scheme, host and port.
pub type HostKey = (OrgId, String);

/// The attempt that sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    pub run: RunId,
    pub step: u32,
    pub fence: u64,
}

/// What a response, or its absence, says about the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostResponse {
    /// The network failed, no response came in time, or a gateway answered that it cannot reach the host.
    pub is_failure: bool,
    /// From a 429 or 503 response.
    pub retry_after: Option<Span>,
}

/// Why a request is not sent, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    pub until: Timestamp,
    pub why: BlockReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReason {
    Outage { failures: u32 },
    AskedToWait,
}

#[derive(Default)]
pub struct HostBackoff {
    hosts: HashMap<HostKey, Host>,
    /// From the least to the most recently used.
    by_use: BTreeMap<u64, HostKey>,
    uses: u64,
}

/// A host without failures and without `Retry-After` has no entry.
#[derive(Default)]
struct Host {
    /// Failures in a row.
    failures: u32,
    /// Different runs among them, at most [`RUNS`].
    runs: Vec<RunId>,
    down: Option<Outage>,
    /// From `Retry-After`: all runs but this one wait until then. That run has its own retry delay.
    retry_after: Option<(Timestamp, RunId)>,
    used: u64,
}

struct Outage {
    block: Span,
    until: Timestamp,
    probe: Option<HostProbe>,
    probed: Vec<(RunId, u32)>,
}

/// A probe under way.
#[derive(Clone, Copy)]
struct HostProbe {
    sender: Sender,
    since: Timestamp,
    /// Without a response by then, it was never sent: its run may have been cancelled, or its start not committed.
    lost_at: Timestamp,
}

impl HostBackoff {
    /// Is no host down, and did none ask for a pause?
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// May this request with this timeout be sent now? If so, call [`record_response`](Self::record_response) or
    /// [`record_abandoned`](Self::record_abandoned) when it ends.
    pub fn admit(&mut self, key: &HostKey, sender: Sender, timeout: Span, now: Timestamp) -> Result<(), Blocked> {
        let Some(host) = self.hosts.get_mut(key) else { return Ok(()) };
        if let Some((until, _)) = host.retry_after.filter(|(until, run)| now < *until && *run != sender.run) {
            return Err(Blocked { until, why: BlockReason::AskedToWait });
        }
        let why = BlockReason::Outage { failures: host.failures };
        let Some(down) = &mut host.down else { return Ok(()) };
        let until = if now < down.until {
            down.until
        } else if let Some(probe) = down.probe.filter(|probe| now < probe.lost_at) {
            now.after(AGAIN.max(now.since(probe.since))).min(probe.lost_at)
        } else if down.probed.contains(&(sender.run, sender.step)) && now < down.until.after(PROBED_WAIT) {
            now.after(AGAIN)
        } else {
            down.probe = Some(HostProbe { sender, since: now, lost_at: now.after(timeout).after(PROBE_LOST_AFTER) });
            return Ok(());
        };
        Err(Blocked { until, why })
    }

    /// Records the response to an admitted request.
    pub fn record_response(&mut self, key: &HostKey, sender: Sender, response: HostResponse, now: Timestamp) {
        let retry_after = response.retry_after.map(|span| span.min(RETRY_AFTER_MAX)).filter(|span| span.0 > 0);
        if !response.is_failure && retry_after.is_none() && !self.hosts.contains_key(key) {
            return;
        }
        let host = self.touch(key);
        match response.is_failure {
            true => host.fail(sender, now),
            false => *host = Host { retry_after: host.retry_after, used: host.used, ..Default::default() },
        }
        if let Some(span) = retry_after {
            let until = now.after(span);
            host.retry_after = Some((host.retry_after.map_or(until, |(earlier, _)| earlier.max(until)), sender.run));
        }
        host.retry_after = host.retry_after.filter(|(until, _)| now < *until);
        if host.failures == 0 && host.retry_after.is_none() {
            self.forget(key);
        }
    }

    /// An admitted request ended without a response: its run was cancelled.
    pub fn record_abandoned(&mut self, key: &HostKey, sender: Sender) {
        if let Some(down) = self.hosts.get_mut(key).and_then(|host| host.down.as_mut()) {
            down.probe = down.probe.filter(|probe| probe.sender != sender);
        }
    }

    fn touch(&mut self, key: &HostKey) -> &mut Host {
        self.uses += 1;
        let used = self.uses;
        let earlier = self.hosts.get(key).map(|host| host.used);
        if let Some(earlier) = earlier {
            self.by_use.remove(&earlier);
        } else if self.hosts.len() >= HOSTS_MAX
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.hosts.remove(&oldest);
        }
        self.by_use.insert(used, key.clone());
        let host = self.hosts.entry(key.clone()).or_default();
        host.used = used;
        host
    }

    fn forget(&mut self, key: &HostKey) {
        if let Some(host) = self.hosts.remove(key) {
            self.by_use.remove(&host.used);
        }
    }
}

impl Host {
    fn fail(&mut self, sender: Sender, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        if self.runs.len() < RUNS && !self.runs.contains(&sender.run) {
            self.runs.push(sender.run);
        }
        match &mut self.down {
            Some(down) if down.probe.is_some_and(|probe| probe.sender == sender) => {
                down.probe = None;
                down.block = Span(down.block.0 * 2).min(BLOCK_MAX);
                down.until = now.after(down.block);
                if down.probed.len() >= PROBED_MAX {
                    down.probed.clear();
                }
                down.probed.push((sender.run, sender.step));
            }
            // The request was sent before the host was known to be down.
            Some(_) => {}
            None if self.failures >= FAILURES && self.runs.len() >= RUNS => {
                let until = now.after(BLOCK_MIN);
                self.down = Some(Outage { block: BLOCK_MIN, until, probe: None, probed: Vec::new() });
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Span = Span::from_secs(30);
    const START: Timestamp = Timestamp(1_000_000_000);
    const FAILURE: HostResponse = HostResponse { is_failure: true, retry_after: None };
    const FINE: HostResponse = HostResponse { is_failure: false, retry_after: None };

    fn key() -> HostKey {
        (OrgId::DEFAULT, "http://h:80".to_owned())
    }

    fn sender(run: u8, step: u32) -> Sender {
        Sender { run: RunId([run; 16]), step, fence: u64::from(step) + 1 }
    }

    fn at(seconds: u64) -> Timestamp {
        START.after(Span::from_secs(seconds))
    }

    fn until(result: Result<(), Blocked>) -> Option<u64> {
        result.err().map(|blocked| blocked.until.since(START).millis() / 1_000)
    }

    /// A host that was found to be down at the start: blocked until second 5.
    fn down() -> HostBackoff {
        let mut hosts = HostBackoff::default();
        for i in 0..8 {
            assert_eq!(hosts.admit(&key(), sender(i % 3, 0), TIMEOUT, START), Ok(()));
            hosts.record_response(&key(), sender(i % 3, 0), FAILURE, START);
        }
        hosts
    }

    #[test]
    fn one_run_is_never_slowed_down_by_its_own_failures() {
        let mut hosts = HostBackoff::default();
        for i in 0..1_000u32 {
            let sender = sender((i % 2) as u8, i);
            assert_eq!(hosts.admit(&key(), sender, TIMEOUT, START), Ok(()), "two runs are not enough either");
            hosts.record_response(&key(), sender, FAILURE, START);
        }
        hosts.record_response(&key(), sender(2, 0), FAILURE, START);
        assert_eq!(until(hosts.admit(&key(), sender(3, 0), TIMEOUT, START)), Some(5), "a third run is");
    }

    #[test]
    fn each_failed_probe_doubles_the_block() {
        let mut hosts = down();
        let mut now = 0;
        for block in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(until(hosts.admit(&key(), sender(9, 9), TIMEOUT, at(now))), Some(now + block));
            assert_eq!(until(hosts.admit(&key(), sender(9, 9), TIMEOUT, at(now + block - 1))), Some(now + block));
            now += block;
            let probe = sender(now as u8, now as u32);
            assert_eq!(hosts.admit(&key(), probe, TIMEOUT, at(now)), Ok(()), "one request probes");
            assert_eq!(
                until(hosts.admit(&key(), sender(9, 9), TIMEOUT, at(now))),
                Some(now + 1),
                "the others are blocked"
            );
            assert_eq!(
                until(hosts.admit(&key(), sender(9, 9), TIMEOUT, at(now + 4))),
                Some(now + 8),
                "and longer with time"
            );
            hosts.record_response(&key(), probe, FAILURE, at(now));
        }
        let other = (OrgId(2), key().1);
        assert_eq!(
            hosts.admit(&other, sender(9, 9), TIMEOUT, at(now)),
            Ok(()),
            "another organisation has its own state"
        );
    }

    #[test]
    fn a_response_ends_the_outage() {
        let mut hosts = down();
        assert_eq!(hosts.admit(&key(), sender(1, 1), TIMEOUT, at(5)), Ok(()));
        hosts.record_response(&key(), sender(1, 1), FINE, at(6));
        assert!(hosts.hosts.is_empty() && hosts.by_use.is_empty(), "nothing to remember");
        for i in 0..7 {
            hosts.record_response(&key(), sender(i, 0), FAILURE, at(7));
        }
        hosts.record_response(&key(), sender(0, 0), FINE, at(7));
        hosts.record_response(&key(), sender(0, 0), FAILURE, at(7));
        assert_eq!(hosts.admit(&key(), sender(1, 1), TIMEOUT, at(7)), Ok(()), "not in a row");
    }

    #[test]
    fn an_abandoned_probe_is_replaced() {
        let mut hosts = down();
        assert_eq!(hosts.admit(&key(), sender(1, 1), TIMEOUT, at(5)), Ok(()));
        hosts.record_abandoned(&key(), sender(1, 2));
        assert_eq!(until(hosts.admit(&key(), sender(2, 1), TIMEOUT, at(5))), Some(6), "another attempt was the probe");
        hosts.record_abandoned(&key(), sender(1, 1));
        assert_eq!(hosts.admit(&key(), sender(2, 1), TIMEOUT, at(5)), Ok(()));
    }

    #[test]
    fn a_probe_that_was_never_sent_is_replaced() {
        let mut hosts = down();
        assert_eq!(hosts.admit(&key(), sender(1, 1), TIMEOUT, at(5)), Ok(()));
        assert_eq!(until(hosts.admit(&key(), sender(2, 1), TIMEOUT, at(40))), Some(45), "its timeout and ten seconds");
        assert_eq!(hosts.admit(&key(), sender(2, 1), TIMEOUT, at(45)), Ok(()));
        hosts.record_response(&key(), sender(1, 1), FAILURE, at(46));
        assert_eq!(
            until(hosts.admit(&key(), sender(3, 1), TIMEOUT, at(46))),
            Some(47),
            "that was not the probe any more"
        );
    }

    #[test]
    fn late_failures_of_earlier_requests_do_not_count_as_probes() {
        let mut hosts = down();
        for i in 0..100 {
            hosts.record_response(&key(), sender(i, 7), FAILURE, at(3));
        }
        assert_eq!(until(hosts.admit(&key(), sender(1, 1), TIMEOUT, at(3))), Some(5));
    }

    #[test]
    fn steps_take_turns_at_probing() {
        let mut hosts = down();
        let (a, b) = (sender(1, 1), sender(2, 2));
        hosts.admit(&key(), a, TIMEOUT, at(5)).unwrap();
        hosts.record_response(&key(), a, FAILURE, at(5));
        assert_eq!(until(hosts.admit(&key(), a, TIMEOUT, at(15))), Some(16), "others first");
        assert_eq!(hosts.admit(&key(), b, TIMEOUT, at(15)), Ok(()));
        hosts.record_response(&key(), b, FAILURE, at(15));
        assert_eq!(until(hosts.admit(&key(), a, TIMEOUT, at(36))), Some(37));
        assert_eq!(hosts.admit(&key(), a, TIMEOUT, at(37)), Ok(()), "unless there are no others");
    }

    #[test]
    fn retry_after_blocks_other_runs_for_at_most_a_minute() {
        for (asked, blocked) in [(10, Some(10)), (3_600, Some(60)), (0, None)] {
            let mut hosts = HostBackoff::default();
            let response = HostResponse { is_failure: false, retry_after: Some(Span::from_secs(asked)) };
            hosts.record_response(&key(), sender(1, 0), response, START);
            assert_eq!(
                hosts.admit(&key(), sender(1, 5), TIMEOUT, START),
                Ok(()),
                "its own run has its own retry delay"
            );
            assert_eq!(until(hosts.admit(&key(), sender(2, 0), TIMEOUT, START)), blocked, "{asked}");
            hosts.record_response(&key(), sender(1, 0), FINE, at(1));
            assert_eq!(
                until(hosts.admit(&key(), sender(2, 0), TIMEOUT, at(1))),
                blocked,
                "another response does not end it"
            );
            assert_eq!(hosts.admit(&key(), sender(2, 0), TIMEOUT, at(60)), Ok(()));
            hosts.record_response(&key(), sender(2, 0), FINE, at(60));
            assert!(hosts.hosts.is_empty());
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut hosts = down();
        for i in 0..HOSTS_MAX as u32 + 5 {
            hosts.record_response(&(OrgId(7), format!("http://h{i}:80")), sender(1, 0), FAILURE, START);
            if i % 100 == 0 {
                hosts.record_response(&key(), sender(1, 0), FAILURE, START);
            }
        }
        assert_eq!((hosts.hosts.len(), hosts.by_use.len()), (HOSTS_MAX, HOSTS_MAX));
        assert!(hosts.hosts.contains_key(&key()), "a recently used host stays");
        assert!(!hosts.hosts.contains_key(&(OrgId(7), "http://h0:80".to_owned())));
    }
}

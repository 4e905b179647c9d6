//! What goes wrong in one story. Each kind of fault is off in about half of the seeds (swarm testing:
//! bugs hide behind faults that mask each other), and has a rate of its own when it is on.
//!
//! Every rate is drawn even where it is then switched off, so that leaving one kind out changes nothing
//! else: that is what makes a failing story shrink.

use super::random::Random;
use kernel::Span;

/// What can be left out of a story: the kinds of faults, and what only some stories are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Crash,
    CrashInRecovery,
    CrashAtCommit,
    Pause,
    StaggeredPause,
    UnknownCommit,
    Outage,
    SpuriousConflict,
    ReadFailure,
    SlowReads,
    DoubleResult,
    UpstreamSilence,
    ClockSkew,
    ClockStep,
    DeadlineRace,
    Upgrade,
    Drain,
    /// Limits on runs that are open at once.
    ConcurrencyLimits,
    /// Runs and workflows that are paused and resumed.
    UserPauses,
    /// Somebody wants to be told that a run has ended.
    Notifications,
    /// Steps that are done outside, and workers that do them.
    Tasks,
    WorkerDeath,
    WorkerHang,
    RepeatedReport,
    WorkerDisconnect,
    /// Limits, rates and pauses of types.
    TypeSettings,
    /// Next to nothing that waits is kept in memory.
    SmallMemory,
}

impl Fault {
    pub const ALL: [Fault; 27] = [
        Fault::Crash,
        Fault::CrashInRecovery,
        Fault::CrashAtCommit,
        Fault::Pause,
        Fault::StaggeredPause,
        Fault::UnknownCommit,
        Fault::Outage,
        Fault::SpuriousConflict,
        Fault::ReadFailure,
        Fault::SlowReads,
        Fault::DoubleResult,
        Fault::UpstreamSilence,
        Fault::ClockSkew,
        Fault::ClockStep,
        Fault::DeadlineRace,
        Fault::Upgrade,
        Fault::Drain,
        Fault::ConcurrencyLimits,
        Fault::UserPauses,
        Fault::Notifications,
        Fault::Tasks,
        Fault::WorkerDeath,
        Fault::WorkerHang,
        Fault::RepeatedReport,
        Fault::WorkerDisconnect,
        Fault::TypeSettings,
        Fault::SmallMemory,
    ];

    pub fn parse(name: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| format!("{fault:?}").eq_ignore_ascii_case(name))
    }
}

/// Chances are in thousandths; a mean is the average time between two.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// A host goes down with every process on it, and comes back.
    pub crash_mean: Option<Span>,
    /// … again, shortly after it came back.
    pub crash_in_recovery: u32,
    /// … just before or just after a commit.
    pub crash_at_commit: u32,
    /// A process stops for a while and goes on with what it remembers.
    pub pause_mean: Option<Span>,
    /// Several hosts stop one by one, and go on in another order.
    pub staggered_pause_mean: Option<Span>,
    /// A commit whose fate nobody learns.
    pub unknown_commit: u32,
    /// What a process does then.
    pub stops_on_unknown: bool,
    /// The store refuses everything for a while.
    pub outage_mean: Option<Span>,
    /// A run's write meets a conflict although nobody else wrote.
    pub spurious_conflict: u32,
    /// A read fails.
    pub read_failure: u32,
    /// A read takes up to this long.
    pub read_delay: Span,
    /// An executor reports twice, or something else later.
    pub double_result: u32,
    /// An upstream never answers.
    pub upstream_silence: u32,
    /// The clocks of hosts are off and drift.
    pub has_clock_skew: bool,
    /// The clock of a host is set.
    pub clock_step_mean: Option<Span>,
    /// A callback, a cancel or both come in the very moment in which a run is due.
    pub deadline_race: u32,
    /// A node of a later release writes to a run what this one cannot read.
    pub upgrade_mean: Option<Span>,
    /// A process is asked to stop: it starts nothing more, and is gone a while later.
    pub drain_mean: Option<Span>,
    pub has_concurrency_limits: bool,
    pub has_user_pauses: bool,
    pub has_notifications: bool,
    pub has_tasks: bool,
    /// A worker takes a task and is never heard of again.
    pub worker_death: u32,
    /// … or until its lease has ended.
    pub worker_hang: u32,
    /// It says again what it said, or something else.
    pub repeated_report: u32,
    /// It hangs up before it is answered.
    pub worker_disconnect: u32,
    pub has_type_settings: bool,
    pub has_small_memory: bool,
}

impl FaultPlan {
    pub fn draw(random: &mut Random, workers: &mut Random, without: &[Fault]) -> FaultPlan {
        let mut faults = FaultPlan {
            crash_mean: mean(random),
            crash_in_recovery: rate(random, 500),
            crash_at_commit: rate(random, 60),
            pause_mean: mean(random),
            staggered_pause_mean: mean(random),
            unknown_commit: rate(random, 100),
            stops_on_unknown: random.coin(),
            outage_mean: mean(random),
            spurious_conflict: rate(random, 200),
            read_failure: rate(random, 200),
            read_delay: if random.coin() { Span::from_millis(3) } else { random.log_millis(10, 5_000) },
            double_result: rate(random, 300),
            upstream_silence: rate(random, 100),
            has_clock_skew: random.coin(),
            clock_step_mean: mean(random),
            deadline_race: rate(random, 300),
            upgrade_mean: mean(random),
            drain_mean: mean(random),
            has_concurrency_limits: random.coin(),
            has_user_pauses: random.coin(),
            has_notifications: random.coin(),
            ..FaultPlan::draw_worker_faults(workers)
        };
        without.iter().for_each(|fault| faults.leave_out(*fault));
        faults
    }

    fn draw_worker_faults(random: &mut Random) -> FaultPlan {
        FaultPlan {
            has_tasks: random.coin(),
            worker_death: rate(random, 400),
            worker_hang: rate(random, 400),
            repeated_report: rate(random, 400),
            worker_disconnect: rate(random, 300),
            has_type_settings: random.coin(),
            has_small_memory: random.coin(),
            ..Default::default()
        }
    }

    /// Do all clocks show the same?
    pub fn has_one_clock(&self) -> bool {
        !self.has_clock_skew && self.clock_step_mean.is_none()
    }

    fn leave_out(&mut self, fault: Fault) {
        match fault {
            Fault::Crash => self.crash_mean = None,
            Fault::CrashInRecovery => self.crash_in_recovery = 0,
            Fault::CrashAtCommit => self.crash_at_commit = 0,
            Fault::Pause => self.pause_mean = None,
            Fault::StaggeredPause => self.staggered_pause_mean = None,
            Fault::UnknownCommit => self.unknown_commit = 0,
            Fault::Outage => self.outage_mean = None,
            Fault::SpuriousConflict => self.spurious_conflict = 0,
            Fault::ReadFailure => self.read_failure = 0,
            Fault::SlowReads => self.read_delay = Span::from_millis(3),
            Fault::DoubleResult => self.double_result = 0,
            Fault::UpstreamSilence => self.upstream_silence = 0,
            Fault::ClockSkew => self.has_clock_skew = false,
            Fault::ClockStep => self.clock_step_mean = None,
            Fault::DeadlineRace => self.deadline_race = 0,
            Fault::Upgrade => self.upgrade_mean = None,
            Fault::Drain => self.drain_mean = None,
            Fault::ConcurrencyLimits => self.has_concurrency_limits = false,
            Fault::UserPauses => self.has_user_pauses = false,
            Fault::Notifications => self.has_notifications = false,
            Fault::Tasks => self.has_tasks = false,
            Fault::WorkerDeath => self.worker_death = 0,
            Fault::WorkerHang => self.worker_hang = 0,
            Fault::RepeatedReport => self.repeated_report = 0,
            Fault::WorkerDisconnect => self.worker_disconnect = 0,
            Fault::TypeSettings => self.has_type_settings = false,
            Fault::SmallMemory => self.has_small_memory = false,
        }
    }
}

/// Zero in half of the seeds, else log-uniform up to `most`.
fn rate(random: &mut Random, most: u32) -> u32 {
    if random.coin() { 0 } else { (most >> random.below(5)).max(1) }
}

fn mean(random: &mut Random) -> Option<Span> {
    let (is_on, mean) = (random.coin(), random.log_millis(4_000, 120_000));
    is_on.then_some(mean)
}

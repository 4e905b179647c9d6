//! Which faults a simulation injects, and how often. Each kind is off in about half of the seeds, because
//! faults can mask each other (swarm testing). When a kind is on, it has its own rate.
//!
//! Every rate is drawn even if the kind is then switched off. That way leaving one kind out changes nothing
//! else, which lets a failing simulation shrink.

use super::random::Random;
use kernel::Span;

/// What can be left out of a simulation: kinds of faults, and features that only some simulations use.
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
    /// Concurrency limits on runs.
    ConcurrencyLimits,
    /// Clients pause and resume runs and workflows.
    UserPauses,
    /// Notifications when a run ends.
    Notifications,
    /// Steps that external workers perform.
    Tasks,
    WorkerDeath,
    WorkerHang,
    RepeatedReport,
    WorkerDisconnect,
    /// Limits, rates and pauses of task types.
    TypeSettings,
    /// The engine keeps only a few ready tasks in memory.
    SmallMemory,
    /// Runs that ended are deleted soon.
    Retention,
    /// The nodes share one store, and know of each other.
    SharedStore,
    /// Events between nodes are lost.
    LostEvents,
    /// Steps that start runs of other workflows.
    Children,
    /// Clients edit and delete workflows.
    Edits,
    /// Schedules that start runs.
    Schedules,
    /// Steps that can be undone, and clients that cancel with `compensate`.
    Undo,
    /// Operators decide about open steps.
    Overrides,
    /// Clients retry runs that failed or timed out.
    Retries,
}

impl Fault {
    pub const ALL: [Fault; 36] = [
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
        Fault::Retention,
        Fault::SharedStore,
        Fault::LostEvents,
        Fault::Children,
        Fault::Edits,
        Fault::Schedules,
        Fault::Undo,
        Fault::Overrides,
        Fault::Retries,
    ];

    pub fn parse(name: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| format!("{fault:?}").eq_ignore_ascii_case(name))
    }
}

/// Chances are in thousandths; a mean is the average time between two faults.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// A host crashes with all its processes, and boots again.
    pub crash_mean: Option<Span>,
    /// A host crashes again shortly after its boot.
    pub crash_in_recovery: u32,
    /// A host crashes just before or just after a commit.
    pub crash_at_commit: u32,
    /// A process pauses and continues with its old memory.
    pub pause_mean: Option<Span>,
    /// Several hosts pause one by one and resume in another order.
    pub staggered_pause_mean: Option<Span>,
    /// A commit returns an unknown outcome.
    pub unknown_commit: u32,
    /// Whether a process stops after an unknown outcome.
    pub stops_on_unknown: bool,
    /// The store refuses everything for a while.
    pub outage_mean: Option<Span>,
    /// A write gets a conflict although there is no competing write.
    pub spurious_conflict: u32,
    /// A read fails.
    pub read_failure: u32,
    /// A read takes up to this long.
    pub read_delay: Span,
    /// An executor reports twice, the second time perhaps with another result.
    pub double_result: u32,
    /// An upstream never answers.
    pub upstream_silence: u32,
    /// Wall clocks have an offset and drift.
    pub has_clock_skew: bool,
    /// A wall clock is set forward or back.
    pub clock_step_mean: Option<Span>,
    /// A callback, a cancel or both arrive at the moment when a run is due.
    pub deadline_race: u32,
    /// A node of a later release writes an event that this release cannot read.
    pub upgrade_mean: Option<Span>,
    /// A process drains: it starts nothing new and stops after a while.
    pub drain_mean: Option<Span>,
    pub has_concurrency_limits: bool,
    pub has_user_pauses: bool,
    pub has_notifications: bool,
    pub has_tasks: bool,
    /// A worker takes a task and dies.
    pub worker_death: u32,
    /// A worker hangs until its lease has ended.
    pub worker_hang: u32,
    /// A worker repeats its report, perhaps with another result.
    pub repeated_report: u32,
    /// A worker disconnects before its claim request is answered.
    pub worker_disconnect: u32,
    pub has_type_settings: bool,
    pub has_small_memory: bool,
    /// Runs that ended this long ago are deleted.
    pub retention: Option<Span>,
    pub is_shared: bool,
    pub loses_events: bool,
    pub has_children: bool,
    pub has_edits: bool,
    pub has_schedules: bool,
    pub has_undo: bool,
    pub has_overrides: bool,
    pub has_retries: bool,
}

impl FaultPlan {
    pub fn draw(random: &mut Random, workers: &mut Random, operators: &mut Random, without: &[Fault]) -> FaultPlan {
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
            retention: mean(random).map(|mean| Span(mean.0 / 4)),
            is_shared: random.coin(),
            loses_events: random.coin(),
            has_children: random.coin(),
            has_edits: random.coin(),
            has_schedules: random.coin(),
            has_undo: operators.coin(),
            has_overrides: operators.coin(),
            has_retries: operators.coin(),
            ..FaultPlan::draw_worker_faults(workers)
        };
        without.iter().for_each(|fault| faults.leave_out(*fault));
        // A read shows what became of a commit.
        faults.stops_on_unknown &= !faults.is_shared;
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

    /// Do all clocks show the same time?
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
            Fault::Retention => self.retention = None,
            Fault::SharedStore => self.is_shared = false,
            Fault::LostEvents => self.loses_events = false,
            Fault::Children => self.has_children = false,
            Fault::Edits => self.has_edits = false,
            Fault::Schedules => self.has_schedules = false,
            Fault::Undo => self.has_undo = false,
            Fault::Overrides => self.has_overrides = false,
            Fault::Retries => self.has_retries = false,
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

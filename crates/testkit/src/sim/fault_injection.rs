//! Injects faults into hosts and the store: crashes, pauses, clock steps, store outages, writes by a later
//! release.
//!
//! A host runs one process. After a pause it may run two: a process that does not know that it was replaced
//! (a zombie), and its replacement. A crash stops all processes of a host. Every crashed host starts again,
//! and the engine recovers its runs when it starts.

use super::clock::{EngineClock, WallClock};
use super::process::{Process, ProcessEvent, new_driver};
use super::violation::CheckResult;
use super::world::{SimEvent, World, ready};
use engine::mailbox::Command;
use engine::nodes::Nodes;
use kernel::{Span, Timestamp, WorkflowId};
use store::ClusterEvent;
use store::prelude::*;

pub enum FaultEvent {
    Crash {
        host: usize,
    },
    /// A second crash, shortly after the host started again.
    CrashInRecovery {
        host: usize,
    },
    /// Starts a process, unless the host has crashed since.
    Boot {
        host: usize,
        generation: u32,
    },
    /// Stops a replaced process that still runs, and restarts its host. Without the restart its work would
    /// never be recovered.
    StopReplaced {
        process: usize,
    },
    /// An operator asks the process to drain.
    Drain {
        host: usize,
    },
    /// The drain grace period is over.
    StopDrained {
        process: usize,
    },
    Pause {
        host: usize,
    },
    /// Some hosts pause one by one and resume in another order.
    StaggeredPause,
    /// The pause of one of these hosts.
    PauseFor {
        host: usize,
        length: Span,
    },
    /// An operator sets the clock of a host.
    ClockStep {
        host: usize,
    },
    /// The store is unavailable for a while.
    Outage,
    /// A node of a later release writes to a run.
    Upgrade,
}

pub struct UnreliableHost {
    pub wall: WallClock,
    /// How often it has crashed.
    generation: u32,
    /// The process that takes requests.
    current: Option<usize>,
}

impl UnreliableHost {
    pub fn is_up(&self) -> bool {
        self.current.is_some()
    }
}

impl World {
    /// Creates the hosts and schedules their faults.
    pub fn set_up_hosts(&mut self, hosts: usize) {
        for host in 0..hosts {
            let drawn = WallClock::draw(&mut self.fault_random, self.now);
            let wall = if self.faults.has_clock_skew { drawn } else { WallClock::exact(self.now) };
            self.hosts.push(UnreliableHost { wall, generation: 0, current: None });
            self.push(Span(0), SimEvent::Fault(FaultEvent::Boot { host, generation: 0 }));
            self.schedule_fault(self.faults.crash_mean, FaultEvent::Crash { host });
            self.schedule_fault(self.faults.pause_mean, FaultEvent::Pause { host });
            self.schedule_fault(self.faults.clock_step_mean, FaultEvent::ClockStep { host });
            self.schedule_fault(self.faults.drain_mean, FaultEvent::Drain { host });
        }
        self.schedule_fault(self.faults.outage_mean, FaultEvent::Outage);
        self.schedule_fault(self.faults.staggered_pause_mean, FaultEvent::StaggeredPause);
        self.schedule_fault(self.faults.upgrade_mean, FaultEvent::Upgrade);
    }

    pub fn apply_fault(&mut self, fault: FaultEvent) -> CheckResult {
        match fault {
            FaultEvent::Boot { host, generation } => self.boot(host, generation),
            FaultEvent::StopReplaced { process } | FaultEvent::StopDrained { process } => {
                if self.processes[process].is_alive() {
                    if matches!(fault, FaultEvent::StopDrained { .. }) && self.faults.is_shared {
                        self.checker.nodes.leave(self.processes[process].epoch);
                        self.tell_others(process, &ClusterEvent::NodesChanged);
                    }
                    self.crash(self.processes[process].host);
                }
            }
            _ if self.is_liveness_phase => {}
            FaultEvent::CrashInRecovery { host } => self.crash(host),
            FaultEvent::Crash { host } => {
                self.crash(host);
                self.schedule_fault(self.faults.crash_mean, fault);
            }
            FaultEvent::Pause { host } => {
                let length = self.fault_random.log_millis(100, 40_000);
                self.pause(host, length);
                self.schedule_fault(self.faults.pause_mean, fault);
            }
            FaultEvent::Drain { host } => {
                self.drain(host);
                self.schedule_fault(self.faults.drain_mean, fault);
            }
            FaultEvent::PauseFor { host, length } => self.pause(host, length),
            FaultEvent::StaggeredPause => {
                self.pause_staggered();
                self.schedule_fault(self.faults.staggered_pause_mean, fault);
            }
            FaultEvent::ClockStep { host } => {
                self.step_clock(host);
                self.schedule_fault(self.faults.clock_step_mean, fault);
            }
            FaultEvent::Upgrade => {
                self.write_as_later_release()?;
                self.schedule_fault(self.faults.upgrade_mean.map(|mean| Span(mean.0 * 4)), fault);
            }
            FaultEvent::Outage => {
                let length = self.fault_random.log_millis(50, 20_000);
                self.note(format!("the store is unavailable for {length}"));
                self.store_down_until = self.now.after(length);
                self.schedule_fault(self.faults.outage_mean, fault);
            }
        }
        Ok(())
    }

    /// Resumes every paused process, for the liveness phase.
    pub fn resume_all(&mut self) {
        for process in 0..self.processes.len() {
            self.push(Span(0), SimEvent::Process(process, ProcessEvent::Resume));
        }
    }

    /// Kills every process of the host; it boots again later.
    pub fn crash(&mut self, host: usize) {
        self.note(format!("host {host} crashes"));
        self.trace.mark("a host crashed", self.hosts[host].is_up());
        for process in 0..self.processes.len() {
            if self.processes[process].host == host {
                self.kill_process(process);
            }
        }
        self.hosts[host].current = None;
        self.hosts[host].generation += 1;
        let (generation, pause) = (self.hosts[host].generation, self.fault_random.log_millis(1, 60_000));
        self.push(pause, SimEvent::Fault(FaultEvent::Boot { host, generation }));
    }

    fn kill_process(&mut self, process: usize) {
        if self.processes[process].kill() {
            let is_replaced = self.hosts[self.processes[process].host].current != Some(process);
            self.trace.mark("a replaced process crashed", is_replaced);
            self.checker.leases.process_died(process);
            for request in self.client_log.process_died(process) {
                self.unanswered(request);
            }
        }
    }

    fn boot(&mut self, host: usize, generation: u32) {
        if self.hosts[host].generation != generation {
            return;
        }
        if self.is_store_down() {
            return self.push(Span::from_millis(500), SimEvent::Fault(FaultEvent::Boot { host, generation }));
        }
        let high_water = ready(self.store.high_water()).expect("the memory store answers");
        let Some(clock) = EngineClock::start(&self.hosts[host].wall, self.now, high_water) else {
            // The process refuses to start; an operator corrects the clock.
            self.trace.mark("a process refused to start because of its clock", true);
            self.note(format!("host {host} cannot start: its clock is far behind {high_water:?}"));
            self.hosts[host].wall.set(self.now, high_water.unwrap_or_default());
            return self.push(Span::from_secs(10), SimEvent::Fault(FaultEvent::Boot { host, generation }));
        };
        let epoch = ready(self.store.next_epoch()).expect("the memory store answers");
        let process = self.processes.len();
        self.trace.mark("a live process was replaced", self.hosts[host].is_up());
        self.note(format!("host {host} starts process {process}, epoch {epoch}"));
        let paused = ready(self.store.workflow_pauses()).expect("the memory store answers");
        let paused: Vec<WorkflowId> = paused.into_iter().map(|pause| pause.workflow).collect();
        let driver = new_driver(epoch, self.workers.sizes, &self.faults);
        let nodes = match self.faults.is_shared {
            true => self.checker.nodes.join(host, epoch, self.now),
            false => Nodes::alone(epoch),
        };
        let mut started = Process::new(host, nodes, clock, high_water, Some(driver));
        started.up_since = self.now;
        self.processes.push(started);
        let versions = self.catalog.versions().iter();
        let workflows = versions.map(|known| known.version.workflow).filter(|w| !paused.contains(w));
        workflows.for_each(|workflow| self.checker.concurrency.workflow_resumed(workflow));
        self.begin_membership(process);
        if let Some(process) = self.hosts[host].current.replace(process) {
            let patience = self.fault_random.log_millis(1_000, 120_000);
            self.push(patience, SimEvent::Fault(FaultEvent::StopReplaced { process }));
        }
        self.push(Span(0), SimEvent::Process(process, ProcessEvent::PollTimers));
        self.push(Span(0), SimEvent::Process(process, ProcessEvent::ScanOutbox));
        self.begin_inbox(process);
        if self.has_schedules {
            self.push(Span(0), SimEvent::Process(process, ProcessEvent::PollSchedules));
        }
        if self.fault_random.chance(self.faults.crash_in_recovery) {
            let soon = self.fault_random.log_millis(1, 300);
            self.push(soon, SimEvent::Fault(FaultEvent::CrashInRecovery { host }));
        }
    }

    /// The process starts nothing new; attempts in progress get a grace period.
    fn drain(&mut self, host: usize) {
        let Some(process) = self.hosts[host].current.filter(|p| !self.processes[*p].is_draining) else { return };
        self.note(format!("process {process} drains"));
        self.trace.mark("a process drained", true);
        self.processes[process].is_draining = true;
        self.deliver(process, Command::Drain);
        let grace = self.fault_random.log_millis(1, 25_000);
        self.push(grace, SimEvent::Fault(FaultEvent::StopDrained { process }));
    }

    /// Pauses the process in the middle of its work. Half of the time a replacement is started meanwhile.
    fn pause(&mut self, host: usize, length: Span) {
        let Some(process) = self.hosts[host].current else { return };
        self.note(format!("process {process} pauses for {length}"));
        self.processes[process].pause();
        self.push(length, SimEvent::Process(process, ProcessEvent::Resume));
        // On a shared store, other nodes take over. Two processes of one name would fence each other.
        if self.fault_random.coin() && !self.faults.is_shared {
            let patience = Span(self.fault_random.between(0, length.0));
            let generation = self.hosts[host].generation;
            self.push(patience, SimEvent::Fault(FaultEvent::Boot { host, generation }));
        }
    }

    fn pause_staggered(&mut self) {
        self.trace.mark("hosts paused one by one", self.hosts.len() > 1);
        for host in 0..self.hosts.len() {
            if self.fault_random.coin() {
                let (begin, length) = (self.fault_random.millis(0, 2_000), self.fault_random.millis(2_000, 20_000));
                self.push(begin, SimEvent::Fault(FaultEvent::PauseFor { host, length }));
            }
        }
    }

    /// Sets the clock forward or back. The size of the step is drawn on a logarithmic scale.
    fn step_clock(&mut self, host: usize) {
        // A node of a shared store with such a clock takes no part, and its timers would be hours ahead for the others.
        let most = if self.faults.is_shared { 120_000 } else { 7_200_000 };
        let size = self.fault_random.log_millis(500, most).0 as i64;
        let step = if self.fault_random.coin() { size } else { -size };
        self.note(format!("the clock of host {host} is set by {step} µs"));
        self.trace.mark("a wall clock was set back", step < 0);
        self.hosts[host].wall.step(step);
        for process in 0..self.processes.len() {
            if self.processes[process].host == host && self.processes[process].is_up() {
                self.follow_wall_clock(process);
            }
        }
    }

    /// Picks a process that takes requests; one in five times it may be a replaced one.
    pub fn reachable(&mut self) -> Option<usize> {
        let is_alive = |process: &usize| self.processes[*process].is_alive();
        let current: Vec<usize> = self.hosts.iter().filter_map(|h| h.current).filter(is_alive).collect();
        let any: Vec<usize> = (0..self.processes.len()).filter(is_alive).collect();
        let list = if self.workload_random.chance(200) { any } else { current };
        (!list.is_empty()).then(|| self.workload_random.pick(&list))
    }

    fn schedule_fault(&mut self, mean: Option<Span>, fault: FaultEvent) {
        if let Some(mean) = mean {
            let at: Timestamp = self.now.after(Span(self.fault_random.between(1, 2 * mean.0)));
            self.push_at(at, SimEvent::Fault(fault));
        }
    }
}

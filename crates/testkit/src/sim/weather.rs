//! Hosts and the store in bad weather: crashes, pauses, zombies, a store that is away.
//!
//! A host runs one process; after a pause it may run two, an old one that does not know it was replaced
//! and the one that replaced it. A host goes down as a whole, and whatever goes down comes back: the
//! engine reads what it must recover when it starts.

use super::process::{Happening, Process};
use super::world::{Event, World, ready};
use engine::mailbox::Command;
use kernel::{Span, Timestamp};
use store::Store;

pub enum Weather {
    Crash {
        host: usize,
    },
    /// A crash while the host is still busy coming back.
    Relapse {
        host: usize,
    },
    /// Starts a process, unless the host has crashed since.
    Boot {
        host: usize,
        generation: u32,
    },
    Pause {
        host: usize,
    },
    /// The store goes away for a while.
    Outage,
}

#[derive(Default)]
pub struct Host {
    /// How often it has crashed.
    generation: u32,
    /// The process that answers.
    current: Option<usize>,
}

impl Host {
    pub fn is_up(&self) -> bool {
        self.current.is_some()
    }
}

impl World {
    /// Sets up the hosts and what is going to befall them.
    pub fn forecast(&mut self, hosts: usize) {
        for host in 0..hosts {
            self.hosts.push(Host::default());
            self.push(Span(0), Event::Weather(Weather::Boot { host, generation: 0 }));
            self.expect_crash(host);
            self.expect_pause(host);
        }
        self.expect_outage();
    }

    pub fn change(&mut self, weather: Weather) {
        match weather {
            Weather::Boot { host, generation } => self.boot(host, generation),
            _ if self.is_calm => {}
            Weather::Relapse { host } => self.crash(host),
            Weather::Crash { host } => {
                self.crash(host);
                self.expect_crash(host);
            }
            Weather::Pause { host } => {
                self.pause(host);
                self.expect_pause(host);
            }
            Weather::Outage => {
                let length = self.chance.log_millis(50, 20_000);
                self.note(format!("the store is away for {length}"));
                self.store_down_until = self.now.after(length);
                self.expect_outage();
            }
        }
    }

    /// Good weather: whoever is paused goes on.
    pub fn clear_up(&mut self) {
        for process in 0..self.processes.len() {
            self.push(Span(0), Event::Process(process, Happening::Resume));
        }
    }

    /// Every process on the host is gone with all it knew.
    pub fn crash(&mut self, host: usize) {
        self.note(format!("host {host} crashes"));
        for process in 0..self.processes.len() {
            if self.processes[process].host == host && self.processes[process].kill() {
                self.trace.mark("a replaced process crashed", self.hosts[host].current != Some(process));
                for ask in self.ledger.lose(process) {
                    self.unanswered(ask);
                }
            }
        }
        self.hosts[host].current = None;
        self.hosts[host].generation += 1;
        let (generation, pause) = (self.hosts[host].generation, self.chance.log_millis(1, 60_000));
        self.push(pause, Event::Weather(Weather::Boot { host, generation }));
    }

    fn boot(&mut self, host: usize, generation: u32) {
        if self.hosts[host].generation != generation {
            return;
        }
        if self.is_store_down() {
            return self.push(Span::from_millis(500), Event::Weather(Weather::Boot { host, generation }));
        }
        let epoch = ready(self.store.next_epoch()).expect("the memory store answers");
        let unparked = ready(self.store.unparked()).expect("the memory store answers");
        let process = self.processes.len();
        self.trace.mark("a run was recovered", !unparked.is_empty());
        self.trace.mark("a process was replaced while it lives", self.hosts[host].is_up());
        self.note(format!("host {host} starts process {process}, epoch {epoch}, {} to recover", unparked.len()));
        self.processes.push(Process::new(host, epoch));
        self.hosts[host].current = Some(process);
        for (org, run) in unparked {
            self.deliver(process, Command::Recover { org, run });
        }
        self.push(Span(0), Event::Process(process, Happening::Poll));
        if self.chance.chance(self.faults.crash_in_recovery) {
            let soon = self.chance.log_millis(1, 300);
            self.push(soon, Event::Weather(Weather::Relapse { host }));
        }
    }

    /// The process stops in the middle of whatever it does. Half of the time somebody takes it for dead
    /// and starts another.
    fn pause(&mut self, host: usize) {
        let Some(process) = self.hosts[host].current else { return };
        let length = self.chance.log_millis(100, 40_000);
        self.note(format!("process {process} stops for {length}"));
        self.processes[process].pause();
        self.push(length, Event::Process(process, Happening::Resume));
        if self.chance.coin() {
            let patience = Span(self.chance.between(0, length.0));
            let generation = self.hosts[host].generation;
            self.push(patience, Event::Weather(Weather::Boot { host, generation }));
        }
    }

    /// A process that takes requests; now and then one that was replaced.
    pub fn reachable(&mut self) -> Option<usize> {
        let is_alive = |process: &usize| self.processes[*process].is_alive();
        let current: Vec<usize> = self.hosts.iter().filter_map(|h| h.current).filter(is_alive).collect();
        let any: Vec<usize> = (0..self.processes.len()).filter(is_alive).collect();
        let list = if self.workload.chance(200) { any } else { current };
        (!list.is_empty()).then(|| self.workload.pick(&list))
    }

    fn expect_crash(&mut self, host: usize) {
        self.expect(self.faults.crash_mean, Weather::Crash { host });
    }

    fn expect_pause(&mut self, host: usize) {
        self.expect(self.faults.pause_mean, Weather::Pause { host });
    }

    fn expect_outage(&mut self) {
        self.expect(self.faults.unavailable_mean, Weather::Outage);
    }

    fn expect(&mut self, mean: Option<Span>, weather: Weather) {
        if let Some(mean) = mean {
            let at: Timestamp = self.now.after(Span(self.chance.between(1, 2 * mean.0)));
            self.push_at(at, Event::Weather(weather));
        }
    }
}

//! The log of the clients: every request and its answer. A line is written before the request is sent, so a request
//! without an answer is logged too.

use std::sync::{Mutex, MutexGuard};

#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Start a run under a key.
    Start {
        key: String,
    },
    Callback {
        run: String,
        payload: String,
    },
    Cancel {
        run: String,
    },
    /// A signal under a key.
    Signal {
        run: String,
        key: String,
    },
    /// Approve or resume a step.
    Continue {
        run: String,
        step: &'static str,
    },
    /// Go on with a run that failed.
    Retry {
        run: String,
    },
    /// Approve or reject the step `ask`.
    Decide {
        run: String,
        approves: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// No answer yet, or none that arrived whole.
    Unknown,
    /// Done. For a start: the run.
    Ok(String),
    /// Not done: the request was refused, or never sent.
    No(u16),
}

#[derive(Clone, Debug)]
pub struct Line {
    pub request: Request,
    pub outcome: Told,
}

#[derive(Default)]
pub struct Journal(Mutex<Vec<Line>>);

impl Journal {
    fn lock(&self) -> MutexGuard<'_, Vec<Line>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds a line; called before the request is sent.
    pub fn ask(&self, request: Request) -> usize {
        let mut lines = self.lock();
        lines.push(Line { request, outcome: Told::Unknown });
        lines.len() - 1
    }

    pub fn note(&self, line: usize, outcome: Told) {
        self.lock()[line].outcome = outcome;
    }

    pub fn lines(&self) -> Vec<Line> {
        self.lock().clone()
    }

    pub fn acked(&self) -> usize {
        self.lock().iter().filter(|line| matches!(line.outcome, Told::Ok(_))).count()
    }

    /// The keys of all start requests and their outcomes.
    pub fn starts(&self) -> Vec<(String, Told)> {
        let key = |line: &Line| match &line.request {
            Request::Start { key } => Some((key.clone(), line.outcome.clone())),
            _ => None,
        };
        self.lock().iter().filter_map(key).collect()
    }
}

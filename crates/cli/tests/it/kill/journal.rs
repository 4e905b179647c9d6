//! What clients asked for and what they were told. A line is written before the request goes out, so
//! that a request nobody answered is remembered too.

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
}

#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// Asked; no answer yet, or none that arrived whole.
    Unknown,
    /// Done. For a start: the run.
    Ok(String),
    /// Not done: refused, or never sent.
    No(u16),
}

#[derive(Clone, Debug)]
pub struct Line {
    pub request: Request,
    pub told: Told,
}

#[derive(Default)]
pub struct Journal(Mutex<Vec<Line>>);

impl Journal {
    fn lock(&self) -> MutexGuard<'_, Vec<Line>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Before the request goes out.
    pub fn ask(&self, request: Request) -> usize {
        let mut lines = self.lock();
        lines.push(Line { request, told: Told::Unknown });
        lines.len() - 1
    }

    pub fn note(&self, line: usize, told: Told) {
        self.lock()[line].told = told;
    }

    pub fn lines(&self) -> Vec<Line> {
        self.lock().clone()
    }

    pub fn acked(&self) -> usize {
        self.lock().iter().filter(|line| matches!(line.told, Told::Ok(_))).count()
    }

    /// Keys of starts and what is known of them.
    pub fn starts(&self) -> Vec<(String, Told)> {
        let key = |line: &Line| match &line.request {
            Request::Start { key } => Some((key.clone(), line.told.clone())),
            _ => None,
        };
        self.lock().iter().filter_map(key).collect()
    }
}

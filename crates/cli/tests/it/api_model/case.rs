//! One case: a sequence of random requests, and the model they are compared with.

use super::model::*;
use crate::harness::{Answer, Api};
use serde_json::Value;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use testkit::rng::Rng;

pub struct Case {
    pub api: Api,
    pub rng: Rng,
    number: u64,
    trace: Vec<String>,
    pub workflows: Vec<Workflow>,
    pub runs: Vec<Run>,
    /// By workflow (or none, for single tasks) and key.
    pub keys: BTreeMap<(Option<usize>, &'static str), Keyed>,
    pub triggers: Vec<Trigger>,
}

/// Few of each, so that requests meet.
pub const NAMES: [&str; 3] = ["a", "b", "c"];
pub const KEYS: [&str; 3] = ["k1", "k2", "k3"];
pub const LABELS: [&str; 2] = ["x", "y"];

impl Case {
    pub fn new(api: Api, number: u64) -> Case {
        Case {
            api,
            rng: Rng::new(number),
            number,
            trace: Vec::new(),
            workflows: Vec::new(),
            runs: Vec::new(),
            keys: BTreeMap::new(),
            triggers: Vec::new(),
        }
    }

    /// Sends this many requests and compares everything at the end. Prints the requests if an answer is wrong.
    pub fn run(&mut self, operations: usize) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..operations {
                self.operate();
            }
            self.compare_everything();
        }));
        if let Err(panic) = outcome {
            eprintln!("case {} (ONWARD_API_CASE={0} runs it alone):\n{}", self.number, self.trace.join("\n"));
            resume_unwind(panic);
        }
    }

    pub fn requests(&self) -> u64 {
        self.trace.len() as u64
    }

    fn operate(&mut self) {
        match self.rng.below(26) {
            0..=2 => self.define(),
            3 => self.edit(),
            4 => self.delete_workflow(),
            5 => self.enable_or_disable(),
            6 | 7 => self.pause_or_resume_workflow(),
            8..=10 => self.start(),
            11 => self.start_batch(),
            12 | 13 => self.cancel(),
            14 | 15 => self.pause_or_resume_run(),
            16 => self.delete_run(),
            17 => self.submit(),
            18 | 19 => self.claim(),
            20 | 21 => self.report(),
            22 => self.create_trigger(),
            23 => self.change_trigger(),
            24 => self.fire(),
            _ => self.compare_one(),
        }
    }

    /// A name that only this case uses.
    pub fn name(&self, name: &str) -> String {
        format!("m{}-{name}", self.number)
    }

    pub fn task_type(&self, name: &str) -> String {
        format!("m{}.{name}.v1", self.number)
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.post_with(path, &[], body)
    }

    pub fn post_with(&mut self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let answer = self.api.post_with(&format!("/api/v1{path}"), headers, body);
        self.note(format!("POST {path} {headers:?} {body}"), &answer);
        answer
    }

    pub fn put(&mut self, path: &str, body: &Value) -> Answer {
        let answer = self.api.put(&format!("/api/v1{path}"), body);
        self.note(format!("PUT {path} {body}"), &answer);
        answer
    }

    pub fn get(&mut self, path: &str) -> Answer {
        let answer = self.api.get(&format!("/api/v1{path}"));
        self.note(format!("GET {path}"), &answer);
        answer
    }

    pub fn delete(&mut self, path: &str) -> Answer {
        let answer = self.api.delete(&format!("/api/v1{path}"));
        self.note(format!("DELETE {path}"), &answer);
        answer
    }

    fn note(&mut self, request: String, answer: &Answer) {
        self.trace.push(format!("{request}\n    {} {}", answer.status, answer.text()));
    }

    /// A key that may have been used before, in about half of all requests.
    pub fn any_key(&mut self) -> Option<&'static str> {
        self.rng.one_in(2).then(|| self.rng.pick(&KEYS))
    }

    pub fn any_label(&mut self) -> Option<&'static str> {
        self.rng.one_in(3).then(|| self.rng.pick(&LABELS))
    }

    /// A run that has been created, also one that is deleted.
    pub fn any_run(&mut self) -> Option<usize> {
        (!self.runs.is_empty()).then(|| self.rng.below(self.runs.len() as u64) as usize)
    }

    /// A name, and the workflow that has it now.
    pub fn any_workflow(&mut self) -> (String, Option<usize>) {
        let name = self.rng.pick(&NAMES);
        let name = self.name(name);
        let found = self.workflows.iter().position(|workflow| workflow.name == name && !workflow.is_deleted);
        (name, found)
    }
}

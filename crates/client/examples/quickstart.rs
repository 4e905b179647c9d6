use onward_client::{Client, Task, Worker, worker::Context};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Greeting {
    name: String,
}

#[tokio::main]
async fn main() -> Result<(), onward_client::Error> {
    let client = Client::from_env()?;
    let task = client.tasks().submit(Task::new("greet.v1", &Greeting { name: "Ada".into() })).await?;
    Worker::new(client.clone())
        .handle("greet.v1", |input: Greeting, _: Context| async move { Ok(format!("hello {}", input.name)) })
        .run_until(async {
            let said = client.tasks().result::<String>(&task.task_id, Duration::from_secs(30)).await;
            println!("{said:?}");
        })
        .await
}

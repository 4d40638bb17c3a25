//! One process of a run: carries out the orders that it is dealt, and tells what becomes of them.

use super::{
    ledger::Ledger,
    order::{Shop, carry_out},
    pipe::{Event, Instruction, Setup},
    styles::Client,
};
use crate::failure::{self, Failure};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::unix::pipe,
    task::JoinSet,
};

type Instructions = Lines<BufReader<pipe::Receiver>>;

/// Does what the run says, to its end.
pub(super) fn work() -> Result<(), Failure> {
    failure::runtime()?.block_on(async {
        let mut instructions = listen().map_err(Failure::system("read instructions"))?;
        let Some(Instruction::Begin(setup)) = next(&mut instructions).await else { return Ok(()) };
        let (ledger, writer) = Ledger::open();
        let shop = Arc::new(open(*setup, ledger).await?);
        shop.ledger.note(Event::Ready);
        let mut orders = JoinSet::new();
        let is_stopped = loop {
            tokio::select! {
                instruction = next(&mut instructions) => match instruction {
                    Some(Instruction::CarryOut(dealt)) => {
                        for order in dealt {
                            orders.spawn(carry_out(shop.clone(), order));
                        }
                    }
                    Some(Instruction::End) => break false,
                    _ => break true,
                },
                // Ended orders are forgotten.
                Some(_) = orders.join_next() => {}
            }
        };
        if is_stopped {
            // Dropped, they give back what they have.
            orders.shutdown().await;
        }
        while orders.join_next().await.is_some() {}
        shop.client.close().await;
        drop(shop);
        // It ends when all has been written.
        let _ = tokio::task::spawn_blocking(|| writer.join()).await;
        Ok(())
    })
}

async fn open(setup: Setup, ledger: Ledger) -> Result<Shop, Failure> {
    Ok(Shop {
        client: Client::connect(&setup).await?,
        ledger,
        work: Duration::from_micros(setup.work_us),
        wait: Duration::from_micros(setup.wait_us),
        orders: setup.orders,
    })
}

fn listen() -> io::Result<Instructions> {
    let input = rustix::io::dup(rustix::stdio::stdin())?;
    Ok(BufReader::new(pipe::Receiver::from_owned_fd(input)?).lines())
}

/// The next instruction; none: there will be none, or none that we understand.
async fn next(instructions: &mut Instructions) -> Option<Instruction> {
    let line = instructions.next_line().await.ok()??;
    serde_json::from_str(&line).ok()
}

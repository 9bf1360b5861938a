//! Packets between a shim and its queue, which never leave the machine.

use tessera_wire::kernel_identity::{KernelIdentity, SERVER_NAME, pinned_client};

/// How many packets are sent, each after the one before was read.
const PACKETS: u64 = 200;

#[tokio::test]
async fn few_of_the_packets_within_a_machine_are_acknowledged_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let identity = KernelIdentity::load_or_create(folder.path()).unwrap();
    let server = identity.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut client = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    client.set_default_client_config(pinned_client(identity.fingerprint()).unwrap());
    let connecting = client.connect(server.local_addr().unwrap(), SERVER_NAME).unwrap();
    let (there, here) = tokio::join!(async { server.accept().await.unwrap().await }, connecting);
    let (there, here) = (there.unwrap(), here.unwrap());
    let (mut send, _) = here.open_bi().await.unwrap();
    send.write_all(&[0]).await.unwrap();
    let (_, mut receive) = there.accept_bi().await.unwrap();
    receive.read_exact(&mut [0]).await.unwrap();

    let before = here.stats().frame_rx.acks;
    for _ in 0..PACKETS {
        send.write_all(&[1; 64]).await.unwrap();
        receive.read_exact(&mut [0; 64]).await.unwrap();
    }

    // By default every second packet is acknowledged at once. A slow machine acknowledges some more after 25 ms.
    let acknowledgements = here.stats().frame_rx.acks - before;
    assert!(acknowledgements <= PACKETS / 4, "{acknowledgements} acknowledgements");
}

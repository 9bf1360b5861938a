//! Arbitrary frames, each variant of each kind among them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use tessera_frames::cluster::*;
use tessera_model::batch::{
    BatchRules, EarlySignal, Interaction, LaunchStyle, OpenMode, TerminalSize, WarningSignal,
};
use tessera_model::container::{ContainerMount, ContainerRules};
use tessera_model::isolation::IsolationGap;
use tessera_model::lease::LeaseTerms;
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::mig::{Geometry, MediaEngines, PlanStep, Profile, ProfileId, Slot};
use tessera_model::readings::{MemoryReading, MemoryReadings, ReadingUnit};
use tessera_model::share::{CheckpointSignal, MpsShare};
use tessera_model::spec::{Class, JobProgram, OutputPaths, RunSpec};
use tessera_model::{
    AttemptId, BootId, Bytes, ControllerId, GpuId, JobId, Millis, NodeName, PlanId, SliceId,
};
use uuid::Uuid;

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

fn attempt() -> impl Strategy<Value = AttemptId> {
    uuid().prop_map(AttemptId::from_uuid)
}

fn job() -> impl Strategy<Value = JobId> {
    (1..u64::MAX).prop_map(JobId::from_number)
}

fn millis() -> impl Strategy<Value = Millis> {
    any::<u64>().prop_map(Millis::new)
}

fn bytes() -> impl Strategy<Value = Bytes> {
    any::<u64>().prop_map(Bytes::new)
}

fn gpu() -> impl Strategy<Value = GpuId> {
    "GPU-[0-9a-f]{8}".prop_map(|text| text.parse().unwrap())
}

fn slice() -> impl Strategy<Value = SliceId> {
    "(MIG|GPU)-[0-9a-f]{8}".prop_map(|text| text.parse().unwrap())
}

fn node() -> impl Strategy<Value = NodeName> {
    "[a-z][a-z0-9.-]{0,8}".prop_map(|text| text.parse().unwrap())
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,20}"
}

fn slot() -> impl Strategy<Value = Slot> {
    (any::<u8>(), any::<u32>())
        .prop_map(|(start, profile)| Slot { start, profile: ProfileId(profile) })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop::sample::select(Outcome::ALL)
}

fn terms() -> impl Strategy<Value = LeaseTerms> {
    (2_000_u64..1_000_000).prop_map(|ms| LeaseTerms::from_length(Millis::new(ms)).unwrap())
}

fn profile() -> impl Strategy<Value = Profile> {
    let numbers = (any::<u32>(), 1_u8..8, 1_u8..9, 1_u8..8, any::<u16>(), any::<u32>());
    (numbers, bytes(), vec(any::<u8>(), 1..5)).prop_map(|(numbers, memory, starts)| {
        let (id, compute_slices, memory_slices, max_instances, sms, engines) = numbers;
        Profile {
            id: ProfileId(id),
            name: format!("{compute_slices}g.{memory_slices}gb").parse().unwrap(),
            compute_slices,
            memory_slices,
            max_instances,
            memory,
            sms,
            copy_engines: engines,
            media: MediaEngines { decoders: engines, ..MediaEngines::default() },
            starts,
        }
    })
}

fn record() -> impl Strategy<Value = ExitRecord> {
    let exit = prop_oneof![
        any::<u8>().prop_map(ProgramExit::Code),
        any::<u8>().prop_map(ProgramExit::Signal)
    ];
    let times = (millis(), millis(), millis(), millis());
    (outcome(), option::of(exit), text(), times, bytes()).prop_map(
        |(outcome, exit, detail, times, max_rss)| ExitRecord {
            outcome,
            exit,
            detail,
            started_unix: times.0,
            ended_unix: times.1,
            user_time: times.2,
            system_time: times.3,
            max_rss,
        },
    )
}

fn report() -> impl Strategy<Value = AttemptReport> {
    let status = prop_oneof![
        Just(AttemptStatus::Journalled),
        (any::<u32>(), millis())
            .prop_map(|(pid, started_unix)| AttemptStatus::Running { pid, started_unix }),
        record().prop_map(AttemptStatus::Ended),
    ];
    (attempt(), job(), status).prop_map(|(attempt, job, status)| AttemptReport {
        attempt,
        job,
        status,
    })
}

fn compute_slot() -> impl Strategy<Value = ComputeSlot> {
    (0..7_u8, 1..=7_u8).prop_map(|(start, slices)| ComputeSlot { start, slices })
}

fn cut() -> impl Strategy<Value = Cut> {
    vec(compute_slot(), 0..7).prop_map(|slots| {
        slots.into_iter().fold(Cut::default(), |mut cut, slot| {
            cut.insert(slot);
            cut
        })
    })
}

fn gpu_report() -> impl Strategy<Value = GpuReport> {
    let trouble = prop_oneof![
        vec(any::<u32>(), 0..16).prop_map(|pids| InstanceTrouble::Foreign { pids }),
        text().prop_map(|reason| InstanceTrouble::Stuck { reason }),
    ];
    let part = (compute_slot(), option::of(slice()), any::<u16>())
        .prop_map(|(slot, slice, sms)| ComputeInstanceReport { slot, slice, sms });
    let parts = vec(part, 0..4);
    let instance = (slot(), option::of(slice()), bytes(), any::<u16>(), option::of(trouble), parts)
        .prop_map(|(slot, slice, memory, sms, trouble, parts)| InstanceReport {
            slot,
            slice,
            memory,
            sms,
            trouble,
            parts,
        });
    let mig = prop_oneof![
        Just(MigReport::Unsupported),
        Just(MigReport::Off),
        (any::<u8>(), vec(profile(), 0..6)).prop_map(|(memory_slices, profiles)| {
            MigReport::On { geometry: Geometry { memory_slices, profiles } }
        }),
    ];
    let health = prop_oneof![
        Just(GpuHealth::Healthy),
        Just(GpuHealth::Unresponsive),
        text().prop_map(|reason| GpuHealth::Faulty { reason }),
    ];
    let figures = (gpu(), any::<u32>(), text(), bytes(), option::of(any::<u16>()));
    let quarantine = (millis(), option::of(millis()), text())
        .prop_map(|(since_unix, until_unix, reason)| Quarantine { since_unix, until_unix, reason });
    let state = (health, vec(fault(), 0..4), option::of(quarantine), vec(slot(), 0..4));
    (figures, mig, vec(instance, 0..7), any::<u64>(), state).prop_map(
        |((gpu, index, model, memory, sms), mig, instances, layout_gen, state)| GpuReport {
            gpu,
            index,
            model,
            memory,
            sms,
            mig,
            instances,
            layout_gen,
            health: state.0,
            faults: state.1,
            quarantine: state.2,
            refused: state.3,
        },
    )
}

fn fault() -> impl Strategy<Value = GpuFault> {
    let cause = prop_oneof![
        any::<u32>().prop_map(FaultCause::Xid),
        (text(), any::<u32>()).prop_map(|(call, code)| FaultCause::Nvml { call, code }),
        Just(FaultCause::Silence),
    ];
    let action = prop::sample::select(vec![
        FaultAction::Record,
        FaultAction::RestartApp,
        FaultAction::Drain,
        FaultAction::ResetGpu,
        FaultAction::RestartNode,
    ]);
    let hit = (option::of(slot()), vec(attempt(), 0..3));
    (millis(), cause, hit, action, any::<u32>(), text()).prop_map(
        |(at_unix, cause, (slot, attempts), action, times, message)| GpuFault {
            at_unix,
            cause,
            slot,
            attempts,
            action,
            times,
            message,
        },
    )
}

fn hello() -> impl Strategy<Value = Hello> {
    let numbers = (any::<u16>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
    (numbers, text(), uuid(), option::of(uuid()), bytes()).prop_map(
        |(numbers, software, boot, controller, memory)| Hello {
            mps: numbers.1 % 2 == 0,
            kernel: numbers.1 % 3 == 0,
            address: software.clone(),
            isolation_gaps: IsolationGap::ALL
                .into_iter()
                .skip(usize::from(numbers.0 % 9))
                .collect(),
            protocol: numbers.0,
            software,
            boot: BootId::from_uuid(boot),
            process: numbers.1,
            generation: numbers.2,
            highest_epoch: numbers.3,
            receipt: numbers.1.to_be_bytes().to_vec(),
            controller: controller.map(ControllerId::from_uuid),
            cores: numbers.4,
            memory,
        },
    )
}

fn usage() -> impl Strategy<Value = AttemptUsage> {
    (attempt(), option::of(any::<u64>()), option::of(bytes())).prop_map(
        |(attempt, energy_mj, peak_memory)| AttemptUsage { attempt, energy_mj, peak_memory },
    )
}

fn figures() -> impl Strategy<Value = GpuFigures> {
    let slice = (slot(), option::of(bytes()), option::of(any::<u16>()))
        .prop_map(|(slot, memory_used, activity)| SliceFigures { slot, memory_used, activity });
    let now = (option::of(bytes()), option::of(any::<u16>()), option::of(any::<u64>()));
    let running = (attempt(), job(), now).prop_map(|(attempt, job, now)| AttemptFigures {
        attempt,
        job,
        memory_used: now.0,
        activity: now.1,
        energy_mj: now.2,
        memory_peak: now.0,
        idle_since: now.2.map(Millis::new),
    });
    let figures = (option::of(bytes()), option::of(any::<u64>()), option::of(any::<u16>()));
    let lists = (vec(slice, 0..8), vec(running, 0..8));
    (gpu(), millis(), figures, any::<[u64; 3]>(), lists).prop_map(
        |(gpu, at_unix, figures, energy, lists)| GpuFigures {
            gpu,
            at_unix,
            memory_used: figures.0,
            power_mw: figures.1,
            activity: figures.2,
            attempts_mj: energy[0],
            other_mj: energy[1],
            idle_mj: energy[2],
            slices: lists.0,
            attempts: lists.1,
        },
    )
}

/// Any frame of an agent.
pub fn to_controller() -> impl Strategy<Value = ToController> {
    let end = prop_oneof![
        Just(PlanEnd::Done),
        (any::<u32>(), text())
            .prop_map(|(steps_done, reason)| PlanEnd::Failed { steps_done, reason }),
        text().prop_map(|reason| PlanEnd::Refused { reason }),
    ];
    prop_oneof![
        hello().prop_map(ToController::Hello),
        gpu_report().prop_map(ToController::Gpu),
        report().prop_map(ToController::Attempt),
        Just(ToController::InventoryDone),
        (millis(), any::<u64>())
            .prop_map(|(sent, generation)| ToController::Renew { sent, generation }),
        attempt().prop_map(|attempt| ToController::Tombstoned { attempt }),
        (uuid(), gpu(), end).prop_map(|(plan, gpu, end)| ToController::PlanEnded {
            plan: PlanId::from_uuid(plan),
            gpu,
            end
        }),
        (gpu(), option::of(text()))
            .prop_map(|(gpu, problem)| ToController::MigModeEnded { gpu, problem }),
        any::<u64>().prop_map(|token| ToController::Present { token }),
        usage().prop_map(ToController::Usage),
        figures().prop_map(|figures| ToController::Figures(Box::new(figures))),
        (any::<u64>(), vec(finding(), 0..3))
            .prop_map(|(token, findings)| ToController::Examined { token, findings }),
        (any::<u64>(), piece())
            .prop_map(|(number, piece)| ToController::KernelReport { number, piece }),
        text().prop_map(|task| ToController::KernelWanted { task }),
        vec((attempt(), any::<[u64; 4]>()), 0..3).prop_map(|tallies| {
            let tally = |(attempt, numbers): (AttemptId, [u64; 4])| {
                let [sessions, launches, waits, memory_peak_bytes] = numbers;
                let figures = KernelFigures {
                    sessions,
                    launches,
                    waits,
                    memory_peak_bytes,
                    ..KernelFigures::default()
                };
                KernelTally { attempt, figures }
            };
            ToController::KernelTallies(tallies.into_iter().map(tally).collect())
        }),
        vec(memory(), 0..3).prop_map(ToController::Memory),
        (attempt(), bytes(), any::<u16>(), bytes()).prop_map(
            |(attempt, held, multiprocessors, refused)| {
                ToController::Needs(AttemptNeeds { attempt, held, multiprocessors, refused })
            }
        ),
    ]
}

fn memory() -> impl Strategy<Value = AttemptMemory> {
    let reading = (millis(), any::<u64>(), bytes())
        .prop_map(|(at_unix, position, used)| MemoryReading { at_unix, position, used });
    let unit = prop::sample::select(ReadingUnit::ALL);
    (attempt(), unit, bytes(), any::<bool>(), vec(reading, 0..4)).prop_map(
        |(attempt, unit, left_out, preallocated, readings)| AttemptMemory {
            attempt,
            memory: MemoryReadings { unit, left_out, preallocated, readings },
        },
    )
}

/// A piece of something longer.
pub fn piece() -> impl Strategy<Value = ProfilePiece> {
    (text(), any::<u64>(), any::<u64>(), vec(any::<u8>(), 0..40))
        .prop_map(|(task, offset, whole, bytes)| ProfilePiece { task, offset, whole, bytes })
}

fn finding() -> impl Strategy<Value = Finding> {
    let level =
        prop_oneof![Just(FindingLevel::Ok), Just(FindingLevel::Warn), Just(FindingLevel::Blocks)];
    (text(), level, option::of(any::<u32>()), text(), option::of(text()))
        .prop_map(|(check, level, gpu, text, remedy)| Finding { check, level, gpu, text, remedy })
}

fn launch() -> impl Strategy<Value = LaunchOrder> {
    let program = prop_oneof![
        text().prop_map(JobProgram::Script),
        vec(text(), 0..4).prop_map(JobProgram::Command),
    ];
    let array = (job(), any::<[u32; 4]>()).prop_map(|(array, [index, count, min, max])| {
        ArrayPosition { array, index, count, min, max }
    });
    let fence = (any::<u64>(), any::<u64>(), attempt(), job(), any::<u32>());
    let place = (gpu(), option::of(slot()), slice(), option::of(array));
    let what = (text(), text(), program, option::of(text()), btree_map(text(), text(), 0..4));
    let output = (option::of(text()), option::of(text()))
        .prop_map(|(stdout, stderr)| OutputPaths { stdout, stderr });
    let share = (1_u8..=100, bytes())
        .prop_map(|(sm, memory)| MpsShare { sm: sm.try_into().unwrap(), memory });
    let signal = option::of(proptest::sample::select(CheckpointSignal::ALL));
    let kernel =
        (bytes(), option::of(1_u8..=100), 0_u8..=9, any::<[bool; 2]>(), option::of(text()));
    let kernel =
        kernel.prop_map(|(memory, sm, priority, [exclusive, online], task_key)| KernelQueueSpec {
            memory,
            sm: sm.map(|sm| sm.try_into().unwrap()),
            exclusive,
            priority: priority.try_into().unwrap(),
            class: if online { Class::Online } else { Class::Offline },
            task_key,
        });
    let limits = (option::of(millis()), millis());
    let rest = (
        output,
        limits.0,
        limits.1,
        option::of(outcome()),
        option::of(text()),
        option::of(share),
        signal,
        option::of(kernel),
        option::of(gang()),
    );
    (fence, place, what, rest).prop_map(|(fence, place, what, rest)| LaunchOrder {
        epoch: fence.0,
        generation: fence.1,
        attempt: fence.2,
        job: fence.3,
        number: fence.4,
        gpu: place.0,
        slot: place.1,
        slice: place.2,
        array: place.3,
        name: what.0,
        user: what.1,
        run: RunSpec {
            program: what.2,
            work_dir: what.3,
            env: what.4,
            output: rest.0,
            time_limit: rest.1,
            grace: rest.2,
            checkpoint_signal: rest.6,
            host_memory: rest.1.map(|limit| Bytes::new(limit.get())),
            cpus: rest.1.and_then(|limit| u32::try_from(limit.get()).ok()),
            batch: BatchRules {
                launch: LaunchStyle::Once,
                arguments: rest.4.iter().cloned().collect(),
                signal: rest.1.map(|before_limit| EarlySignal {
                    signal: WarningSignal::Usr1,
                    before_limit,
                    script_only: true,
                }),
                open_mode: rest.1.map(|_| OpenMode::Truncate),
                interaction: rest.1.map(|_| Interaction {
                    terminal: Some(TerminalSize { rows: 24, columns: 80 }),
                }),
            },
            input: rest.4.clone(),
            container: rest.4.clone().map(|image| ContainerRules {
                image,
                mounts: vec![ContainerMount::same("/data")],
                work_dir: rest.1.map(|_| "/work".to_owned()),
            }),
        },
        restart_reason: rest.3,
        traceparent: rest.4,
        share: rest.5,
        kernel: rest.7,
        gang: rest.8,
        oom_count: fence.4,
    })
}

fn gang() -> impl Strategy<Value = GangPosition> {
    let numbers = (job(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let device = (gpu(), option::of(slot()), slice());
    let device = device.prop_map(|(gpu, slot, slice)| GangDevice { gpu, slot, slice });
    (numbers, vec(node(), 0..4), text(), any::<u16>(), vec(device, 0..3)).prop_map(
        |((gang, rank, size, local_rank, local_size, node_rank), nodes, master, port, devices)| {
            GangPosition {
                gang,
                rank,
                size,
                local_rank,
                local_size,
                node_rank,
                nodes,
                master,
                port,
                devices,
            }
        },
    )
}

/// Any frame of a controller.
pub fn to_agent() -> impl Strategy<Value = ToAgent> {
    let welcome = (any::<u16>(), uuid(), node(), any::<u64>(), any::<u64>(), terms()).prop_map(
        |(protocol, controller, node, epoch, generation, lease)| Welcome {
            protocol,
            controller: ControllerId::from_uuid(controller),
            node,
            epoch,
            generation,
            lease,
            receipt: epoch.to_be_bytes().to_vec(),
        },
    );
    let step = prop_oneof![
        slot().prop_map(PlanStep::Destroy),
        slot().prop_map(PlanStep::Create),
        (slot(), cut()).prop_map(|(slot, cut)| PlanStep::Cut(slot, cut)),
    ];
    let numbers = (any::<u64>(), any::<u64>());
    let plan = (numbers, uuid(), gpu(), vec(step, 0..9), option::of(text())).prop_map(
        |((epoch, layout_gen), plan, gpu, steps, traceparent)| PlanOrder {
            epoch,
            plan: PlanId::from_uuid(plan),
            gpu,
            layout_gen,
            steps,
            traceparent,
        },
    );
    let cause = prop_oneof![
        Just(StopCause::Cancel),
        Just(StopCause::Preempt),
        Just(StopCause::Reshare),
        Just(StopCause::Move),
        Just(StopCause::Grow)
    ];
    prop_oneof![
        welcome.prop_map(ToAgent::Welcome),
        (text(), any::<bool>()).prop_map(|(reason, retry)| ToAgent::Refused { reason, retry }),
        (millis(), any::<u64>())
            .prop_map(|(sent, generation)| ToAgent::RenewOk { sent, generation }),
        launch().prop_map(|order| ToAgent::Launch(Box::new(order))),
        (any::<u64>(), attempt(), cause).prop_map(|(epoch, attempt, cause)| ToAgent::Stop {
            epoch,
            attempt,
            cause
        }),
        (any::<u64>(), attempt()).prop_map(|(epoch, attempt)| ToAgent::Revoke { epoch, attempt }),
        attempt().prop_map(|attempt| ToAgent::EndAck { attempt }),
        attempt().prop_map(|attempt| ToAgent::UsageAck { attempt }),
        plan.prop_map(ToAgent::ApplyPlan),
        (any::<u64>(), gpu(), any::<bool>()).prop_map(|(epoch, gpu, on)| ToAgent::SetMigMode {
            epoch,
            gpu,
            on
        }),
        (any::<u64>(), gpu(), option::of(slot())).prop_map(|(epoch, gpu, slot)| ToAgent::Clear {
            epoch,
            gpu,
            slot
        }),
        any::<u64>().prop_map(|token| ToAgent::Probe { token }),
        any::<u64>().prop_map(|token| ToAgent::Examine { token }),
        piece().prop_map(ToAgent::KernelProfile),
        any::<u64>().prop_map(|number| ToAgent::KernelReportAck { number }),
        (any::<u64>(), attempt(), option::of(millis())).prop_map(|(epoch, attempt, limit)| {
            ToAgent::SetTimeLimit { epoch, attempt, limit }
        }),
    ]
}

/// Any request for output.
pub fn log_request() -> impl Strategy<Value = LogRequest> {
    let stream = prop_oneof![Just(LogStream::Stdout), Just(LogStream::Stderr)];
    (attempt(), stream, any::<u64>(), any::<bool>()).prop_map(
        |(attempt, stream, offset, follow)| LogRequest { attempt, stream, offset, follow },
    )
}

/// Any answer with output.
pub fn log_reply() -> impl Strategy<Value = LogReply> {
    prop_oneof![
        (any::<u64>(), vec(any::<u8>(), 0..200))
            .prop_map(|(offset, bytes)| LogReply::Chunk { offset, bytes }),
        any::<u64>().prop_map(|length| LogReply::End { length }),
        text().prop_map(|reason| LogReply::Unknown { reason }),
    ]
}

fn session_name() -> impl Strategy<Value = SessionName> {
    prop_oneof![Just(SessionName::Main), uuid().prop_map(SessionName::Other),]
}

fn terminal_size() -> impl Strategy<Value = TerminalSize> {
    (any::<u16>(), any::<u16>()).prop_map(|(rows, columns)| TerminalSize { rows, columns })
}

/// Any first frame of a stream that a controller opens.
pub fn stream_request() -> impl Strategy<Value = StreamRequest> {
    let program = prop_oneof![
        vec(text(), 0..4).prop_map(SessionProgram::Command),
        any::<u16>().prop_map(SessionProgram::Connect),
    ];
    let start = (program, any::<bool>(), vec((text(), text()), 0..3))
        .prop_map(|(program, terminal, env)| SessionStart { program, terminal, env });
    let session = (
        attempt(),
        session_name(),
        option::of(start),
        option::of(any::<u64>()),
        option::of(terminal_size()),
    );
    prop_oneof![
        log_request().prop_map(StreamRequest::Log),
        session.prop_map(|(attempt, session, start, offset, size)| {
            StreamRequest::Session(SessionRequest { attempt, session, start, offset, size })
        }),
    ]
}

/// Any frame of a client to a session.
pub fn to_session() -> impl Strategy<Value = ToSession> {
    prop_oneof![
        (any::<u64>(), vec(any::<u8>(), 0..200))
            .prop_map(|(offset, bytes)| ToSession::Input { offset, bytes }),
        any::<u64>().prop_map(|length| ToSession::EndOfInput { length }),
        terminal_size().prop_map(ToSession::Resize),
        Just(ToSession::Signal(SessionSignal::Quit)),
        any::<u64>().prop_map(|total| ToSession::Taken { total }),
        Just(ToSession::HangUp),
    ]
}

/// Any frame of a session to its client.
pub fn from_session() -> impl Strategy<Value = FromSession> {
    let exit = prop_oneof![
        any::<u8>().prop_map(ProgramExit::Code),
        any::<u8>().prop_map(ProgramExit::Signal),
    ];
    prop_oneof![
        (any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(offset, input, terminal)| {
            FromSession::Joined { offset, input, terminal }
        }),
        (any::<u64>(), vec(any::<u8>(), 0..200)).prop_map(|(offset, bytes)| {
            FromSession::Output { stream: LogStream::Stderr, offset, bytes }
        }),
        any::<u64>().prop_map(|total| FromSession::Taken { total }),
        (option::of(exit), text()).prop_map(|(exit, detail)| FromSession::Ended { exit, detail }),
        (text(), any::<bool>()).prop_map(|(reason, retry)| FromSession::Refused { reason, retry }),
        Just(FromSession::Replaced),
    ]
}

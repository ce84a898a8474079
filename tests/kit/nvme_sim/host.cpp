// The kernel on a host: LANES threads for each queue pair.
#include <pthread.h>

#include "submit.cu"

struct Lane {
    pthread_t thread;
    const Batch *batch;
    QueuePair *queue;
    Group *group;
    u32 index;
};

static void *run_lane(void *argument) {
    auto lane = (Lane *)argument;
    group = lane->group, own_lane = lane->index, random_bits = lane->index;
    drive(*lane->batch, *lane->queue);
    return nullptr;
}

extern "C" void submit_reads(const Batch *batch, QueuePair *queues, u32 count) {
    auto groups = new Group[count]();
    auto lanes = new Lane[count * LANES];
    for (u32 number = 0; number < count * LANES; number++) {
        u32 queue = number / LANES;
        lanes[number] = {0, batch, queues + queue, &groups[queue], number % LANES};
        pthread_create(&lanes[number].thread, nullptr, run_lane, &lanes[number]);
    }
    for (u32 number = 0; number < count * LANES; number++)
        pthread_join(lanes[number].thread, nullptr);
    delete[] lanes;
    delete[] groups;
}

// The same in the background: `running` becomes 0 at the end.
struct Launch {
    const Batch *batch;
    QueuePair *queues;
    u64 count, running;
};

static void *run_launch(void *argument) {
    auto launch = (Launch *)argument;
    submit_reads(launch->batch, launch->queues, launch->count);
    __atomic_store_n(&launch->running, 0, __ATOMIC_RELEASE);
    return nullptr;
}

extern "C" void launch_reads(Launch *launch) {
    pthread_t thread;
    launch->running = 1;
    pthread_create(&thread, nullptr, run_launch, launch);
    pthread_detach(thread);
}

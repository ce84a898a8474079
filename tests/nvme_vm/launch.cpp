// Launches of the kernel on the processor of a guest. Follows host.cpp of nvme_sim.
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>

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

// What a GPU writes to registers that are gone is lost. A processor gets a SIGBUS.
static void discard(int, siginfo_t *info, void *) {
    void *page = (void *)((uintptr_t)info->si_addr & ~(uintptr_t)4095);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    mmap(page, 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
}

extern "C" int discard_lost_writes() {
    struct sigaction action = {};
    action.sa_sigaction = discard;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &action, nullptr);
}

// The lanes of a queue pair as threads. machine.h includes it.
//
// It promises no more order than a GPU does, so that ThreadSanitizer finds what the kernel lacks:
// from_lane() and ballot() order no memory accesses, and a doorbell announces the writes before it
// only if all lanes have called fence(). (ThreadSanitizer ignores the fences of C++.)
#include <sched.h>
#include <time.h>

#define DEVICE static inline
#define ALL_LANES (LANES == 32 ? 0xffffffffu : (1u << LANES) - 1)

struct Group {
    u32 arrived, rounds;  // of the barrier
    u32 fenced;           // a bit for each lane: it has called fence()
    u64 values[LANES];
};
static thread_local Group *group;
static thread_local u32 own_lane;
static thread_local u32 random_bits;

DEVICE u32 lane_index() { return own_lane; }

DEVICE void barrier(int arrive, int leave, int wait) {
    if (LANES == 1) return;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    u32 rounds = __atomic_load_n(&group->rounds, __ATOMIC_RELAXED);
    if (__atomic_fetch_add(&group->arrived, 1, arrive) == LANES - 1) {
        __atomic_store_n(&group->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&group->rounds, rounds + 1, leave);
    } else {
        while (__atomic_load_n(&group->rounds, wait) == rounds) sched_yield();
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    random_bits = random_bits * 1664525u + 1013904223u;
    if (random_bits >> 30 == 0) sched_yield();  // so that any lane may be the next to run
}
DEVICE void unordered_barrier() { barrier(__ATOMIC_RELAXED, __ATOMIC_RELAXED, __ATOMIC_RELAXED); }
DEVICE void sync_lanes() { barrier(__ATOMIC_ACQ_REL, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE); }

DEVICE u64 from_lane(u64 value, u32 lane) {
    __atomic_store_n(&group->values[own_lane], value, __ATOMIC_RELAXED);
    unordered_barrier();
    u64 found = __atomic_load_n(&group->values[lane], __ATOMIC_RELAXED);
    unordered_barrier();
    return found;
}
DEVICE u32 from_lane(u32 value, u32 lane) { return (u32)from_lane((u64)value, lane); }
DEVICE u32 ballot(bool holds) {
    __atomic_store_n(&group->values[own_lane], holds, __ATOMIC_RELAXED);
    unordered_barrier();
    u32 bits = 0;
    for (u32 lane = 0; lane < LANES; lane++)
        bits |= (u32)__atomic_load_n(&group->values[lane], __ATOMIC_RELAXED) << lane;
    unordered_barrier();
    return bits;
}

DEVICE u32 fetch_add(u32 *word, u32 value) {
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}
DEVICE u32 exchange(u32 *word, u32 value) {
    return __atomic_exchange_n(word, value, __ATOMIC_RELAXED);
}
DEVICE void fence() { __atomic_fetch_or(&group->fenced, 1u << own_lane, __ATOMIC_RELAXED); }
// The clock of the kernel: that of the machine, the same running backwards, none, or one whose
// seconds are the doorbells that were written.
enum : u32 { MONOTONIC, BACKWARDS, STILL, DOORBELLS };
extern "C" {
u32 clock_in_use = MONOTONIC;
}
static u64 doorbells;

DEVICE void write_doorbell(u32 *doorbell, u32 value) {
    __atomic_fetch_add(&doorbells, 1, __ATOMIC_RELAXED);
    bool all = __atomic_exchange_n(&group->fenced, 0, __ATOMIC_RELAXED) == ALL_LANES;
    if (all) __atomic_store_n(doorbell, value, __ATOMIC_RELEASE);
    else __atomic_store_n(doorbell, value, __ATOMIC_RELAXED);
}
DEVICE u32 load_acquire(const u32 *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

DEVICE u64 nanoseconds() {
    if (clock_in_use == STILL) return 0;
    if (clock_in_use == DOORBELLS)
        return 1000000000ull * __atomic_load_n(&doorbells, __ATOMIC_RELAXED);
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    u64 now = time.tv_sec * 1000000000ull + time.tv_nsec;
    return clock_in_use == BACKWARDS ? 0 - now : now;
}
DEVICE void sleep_ns(u32) { sched_yield(); }

DEVICE u32 count_ones(u32 bits) { return __builtin_popcount(bits); }
DEVICE u32 count_trailing_ones(u32 bits) { return ~bits ? __builtin_ctz(~bits) : 32; }

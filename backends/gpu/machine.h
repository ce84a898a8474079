// The lanes that drive a queue pair, and the memory order of their accesses, as seen by other lanes
// and the controller. submit.cu uses nothing else of the machine, so its tests run on a host, with
// threads as lanes.
//
// Source: PTX ISA, "Memory Consistency Model". Needs compute capability 7.0.
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#error "submit.cu needs a GPU of compute capability 7.0 (Volta) or later"
#endif

#define LANES 32u
#define DEVICE static __device__ __forceinline__
#define ALL_LANES 0xffffffffu

DEVICE u32 lane_index() { return threadIdx.x; }

// Every lane waits for all. Afterwards, all lanes see the earlier writes of each.
DEVICE void sync_lanes() { __syncwarp(ALL_LANES); }

// All lanes must call these together. They order no memory accesses.
DEVICE u32 from_lane(u32 value, u32 lane) { return __shfl_sync(ALL_LANES, value, lane); }
DEVICE u64 from_lane(u64 value, u32 lane) { return __shfl_sync(ALL_LANES, value, lane); }
DEVICE u32 ballot(bool holds) { return __ballot_sync(ALL_LANES, holds); }

DEVICE u32 fetch_add(u32 *word, u32 value) { return atomicAdd(word, value); }
DEVICE u32 exchange(u32 *word, u32 value) { return atomicExch(word, value); }

// Any observer of a later write of this lane, also the controller, sees the earlier writes.
DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Exactly one store. All lanes with announced writes have passed a fence and sync_lanes().
DEVICE void write_doorbell(u32 *doorbell, u32 value) {
    fence();
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1202  // PTX 8.2
    asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(doorbell), "r"(value) : "memory");
#else
    asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(doorbell), "r"(value) : "memory");
#endif
}

// Loads a word written by the controller or the host. Their earlier writes are seen afterwards.
DEVICE u32 load_acquire(const u32 *word) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

// Advances in steps of up to 1 ms, and may be set back.
DEVICE u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}
DEVICE void sleep_ns(u32 nanoseconds) { __nanosleep(nanoseconds); }

DEVICE u32 count_ones(u32 bits) { return __popc(bits); }
DEVICE u32 count_trailing_ones(u32 bits) { return ~bits ? __ffs(~bits) - 1 : 32; }

#else

#include "host.h"  // of the tests

#endif

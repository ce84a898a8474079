// NVMe reads submitted by a GPU, which writes commands to submission queues, writes the doorbells
// and polls the completion queues. Each warp drives one queue pair alone, so there are no locks.
// Warps share only the index of the next command.
//
// A slot holds one command in flight and its PRP list. A command identifier is slot | uses << 10,
// where `uses` counts the commands of the slot, modulo 64. So a late or second completion of one
// of the 63 previous commands is not mistaken for the completion of the command in flight.
//
// Sources: NVM Express Base Specification 2.0 (queues, phase tag, PRP); NVM Command Set
// Specification 1.0 (Read). layout.py has these structures as numpy types.
#include "machine.h"

enum : u32 {
    PAGE = 4096,           // bytes of the controller's memory pages: CC.MPS is 0
    LIST_ENTRIES = 512,    // of a PRP list of one page
    READ = 2,              // opcode
    SLOTS = 1024,          // values of the slot in an identifier
    IDENTIFIERS = 65536,
    STATUS_BITS = 0x47ff,  // DNR, SCT and SC; without CRD and M
    NO_COMMAND = 0xffffffff,
    // QueuePair.fault
    NO_FAULT = 0,
    TIMED_OUT = 1,
    STOPPED = 2,
    UNKNOWN_IDENTIFIER = 3,
};

// Arrays of depth entries. layout.py has their initial values.
struct QueuePair {
    u64 *submission_queue;     // u64[depth][8]; only the words used by a read are written
    u32 *completion_queue;     // u32[depth][4]
    u32 *submission_doorbell;  // the tail
    u32 *completion_doorbell;  // the head
    u64 *prp_lists;            // u64[depth][512]: the PRP list of each slot
    const u64 *prp_list_bus;   // u64[depth]: their bus addresses
    u32 *commands;             // u32[depth]: the index of the command in each slot, or NO_COMMAND
    u32 *identifiers;          // u32[depth]: its identifier
    u32 *free;                 // u32[depth]: a stack of depth - 1 - in_flight identifiers
    u32 depth;                 // 2 to SLOTS; the last slot stays unused, so no identifier is 0xffff
    u32 tail, head, phase;     // of the next entries
    u32 in_flight;             // commands submitted and not completed
    u32 fault;                 // if not NO_FAULT, the queue pair claims no more commands
};

struct Batch {
    const u64 *slba;      // u64[count]: the first logical block
    const u32 *blocks;    // u32[count]: their number, at least 1
    const u64 *offset;    // u64[count]: destinations in the arena: bytes, multiples of 4
    u32 *status;          // u32[count]: NOT_DONE, then DNR, SCT and SC
    u32 *next;            // the index of the next command not claimed by a queue pair
    const u64 *page_bus;  // u64[pages]: the bus address of each page of the arena
    const u32 *stop;      // nonzero: return, even with commands in flight
    u64 patience_ns;      // the longest wait of a queue pair for a completion; less than 2^63
    u32 count;            // at most 2^31
    u32 page_shift;       // a page of the arena has 1 << page_shift bytes; at least 12
    u32 block_shift;      // a logical block has 1 << block_shift bytes
    u32 nsid;
    u32 share;            // the most commands that a queue pair claims at once
};

// The state of a queue pair. All lanes have the same values, in registers.
struct State {
    u32 tail, head, phase, in_flight, fault;
    bool all_taken;
};

DEVICE u64 bus_address(const Batch &batch, u64 offset) {
    u64 in_page = offset & ((1ull << batch.page_shift) - 1);
    return batch.page_bus[offset >> batch.page_shift] + in_page;
}

DEVICE u64 page_start(u64 offset) { return offset - offset % PAGE; }

// Here and below, `bytes` counts from the start of the first page to the end of the last block.
DEVICE void write_command(
    const Batch &batch, const QueuePair &queue, u32 at, u32 id, u32 index, u64 offset, u64 bytes
) {
    u64 prp2 = 0;
    if (bytes > 2 * PAGE) prp2 = queue.prp_list_bus[id % SLOTS];
    else if (bytes > PAGE) prp2 = bus_address(batch, page_start(offset) + PAGE);
    u64 *entry = queue.submission_queue + 8 * (u64)at;
    entry[0] = READ | (u64)id << 16 | (u64)batch.nsid << 32;
    entry[3] = bus_address(batch, offset);
    entry[4] = prp2;
    entry[5] = batch.slba[index];
    entry[6] = batch.blocks[index] - 1;
}

// All lanes write the PRP list of one command: its pages but the first.
DEVICE void write_prp_list(
    const Batch &batch, const QueuePair &queue, u32 id, u64 offset, u64 bytes
) {
    u64 *list = queue.prp_lists + LIST_ENTRIES * (u64)(id % SLOTS);
    for (u64 page = 1 + lane_index(); page * PAGE < bytes; page += LANES)
        list[page - 1] = bus_address(batch, page_start(offset) + page * PAGE);
}

// Claims up to `room` commands of the batch, beginning at `first`. Returns their number.
DEVICE u32 take(const Batch &batch, u32 room, u32 &first, bool &all_taken) {
    u32 wanted = room < batch.share ? room : batch.share;
    if (wanted > LANES) wanted = LANES;
    if (all_taken || !wanted) return 0;
    if (lane_index() == 0) first = fetch_add(batch.next, wanted);
    first = from_lane(first, 0);
    u32 left = first < batch.count ? batch.count - first : 0;
    all_taken = left <= wanted;
    return left < wanted ? left : wanted;
}

// Submits at most one command per lane. Returns their number.
DEVICE u32 submit(const Batch &batch, const QueuePair &queue, State &state) {
    u32 lane = lane_index(), room = queue.depth - 1 - state.in_flight, first = 0;
    u32 count = take(batch, room, first, state.all_taken);
    if (!count) return 0;
    u32 id = 0;
    u64 offset = 0, bytes = 0;
    if (lane < count) {
        u32 index = first + lane, at = state.tail + lane;
        if (at >= queue.depth) at -= queue.depth;
        id = queue.free[room - 1 - lane];
        offset = batch.offset[index];
        bytes = offset % PAGE + ((u64)batch.blocks[index] << batch.block_shift);
        queue.commands[id % SLOTS] = index;
        queue.identifiers[id % SLOTS] = id;
        write_command(batch, queue, at, id, index, offset, bytes);
    }
    for (u32 with_list = ballot(bytes > 2 * PAGE), each = 0; with_list; each++, with_list >>= 1)
        if (with_list & 1)
            write_prp_list(
                batch, queue, from_lane(id, each), from_lane(offset, each), from_lane(bytes, each)
            );
    state.in_flight += count;
    state.tail += count;
    if (state.tail >= queue.depth) state.tail -= queue.depth;
    fence();
    sync_lanes();
    if (lane == 0) write_doorbell(queue.submission_doorbell, state.tail);
    return count;
}

// Consumes at most one completion per lane. Returns their number.
DEVICE u32 reap(const Batch &batch, const QueuePair &queue, State &state) {
    u32 lane = lane_index(), at = state.head + lane, phase = state.phase, word = 0;
    if (at >= queue.depth) at -= queue.depth, phase ^= 1;
    bool posted = false;
    if (lane < queue.depth) {
        word = load_acquire(queue.completion_queue + 4 * (u64)at + 3);
        posted = (word >> 16 & 1) == phase;
    }
    u32 count = count_trailing_ones(ballot(posted));
    if (!count) return 0;
    u32 id = word & 0xffff, slot = id % SLOTS, index = NO_COMMAND;
    if (lane < count && slot < queue.depth && queue.identifiers[slot] == id)
        index = exchange(queue.commands + slot, NO_COMMAND);  // another lane may have the same one
    if (index != NO_COMMAND) {
        batch.status[index] = word >> 17 & STATUS_BITS;
        queue.free[queue.depth - 1 - state.in_flight + lane] = (id + SLOTS) % IDENTIFIERS;
    }
    u32 known = count_ones(ballot(index != NO_COMMAND));
    if (known < count) state.fault = UNKNOWN_IDENTIFIER;  // the stack has gaps then
    state.in_flight -= known;
    state.head += count;
    if (state.head >= queue.depth) state.head -= queue.depth, state.phase ^= 1;
    sync_lanes();
    if (lane == 0) write_doorbell(queue.completion_doorbell, state.head);
    return count;
}

// Decides whether to give up after no progress since a time.
DEVICE u32 find_fault(const Batch &batch, u64 since) {
    u32 fault = NO_FAULT;
    if (lane_index() == 0) {
        if ((long long)(nanoseconds() - since) > (long long)batch.patience_ns) fault = TIMED_OUT;
        if (load_acquire(batch.stop)) fault = STOPPED;
    }
    return from_lane(fault, 0);
}

DEVICE void drive(const Batch &batch, QueuePair &shared) {
    const QueuePair queue = shared;  // registers, which load_acquire() does not invalidate
    State state = {queue.tail, queue.head, queue.phase, queue.in_flight, queue.fault, false};
    u64 since = nanoseconds();
    for (u32 round = 1, idle = 0; !state.fault && (!state.all_taken || state.in_flight); round++) {
        // The stop word is in the host's memory, far away.
        if (round % 64 == 0 && (state.fault = find_fault(batch, since))) break;
        u32 moved = submit(batch, queue, state);
        moved += reap(batch, queue, state);
        if (moved) idle = 0, since = nanoseconds();
        else sleep_ns(idle++ < 64 ? 100 : 1000);
    }
    sync_lanes();  // the state has been read by all lanes
    if (lane_index() == 0) {
        shared.tail = state.tail, shared.head = state.head, shared.phase = state.phase;
        shared.in_flight = state.in_flight, shared.fault = state.fault;
    }
}

#ifdef __CUDACC__
// One block of 32 threads for each queue pair.
extern "C" __global__ void submit_reads(Batch batch, QueuePair *queues) {
    drive(batch, queues[blockIdx.x]);
}
#endif

// The I/O queues of an NVMe controller, as a thread of this process. It fetches commands, copies
// blocks from an image to where the PRPs point, and completes in random order. It counts what a
// real controller would refuse.
//
// Sources: NVM Express Base Specification 2.0 (queues, PRP, status); NVM Command Set Specification
// 1.0 (Read).
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include <map>
#include <vector>

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

const u64 PAGE = 4096;
enum : u32 {
    READ = 2,
    NAMESPACE = 1,
    INVALID_FIELD = 0x4002,  // statuses are DNR | SCT << 8 | SC
    INVALID_PRP_OFFSET = 0x4013,
    OUT_OF_RANGE = 0x4080,
    // What a read of a block can be made to do; other values are statuses.
    NEVER = 0x10000,    // does not complete
    TWICE = 0x20000,    // completes again, up to 7 completions later
    FOREIGN = 0x30000,  // completes with another identifier: the lower bits are those that differ
};
// Of those, DOORBELLS to POINTERS are what a real controller would refuse.
enum Counter {
    COMMANDS, BYTES, IN_FLIGHT, ROUNDS, DOORBELLS, FIELDS, IDENTIFIERS, POINTERS, COUNTERS
};

struct Command {
    u32 words[16];
    u32 delay;
    u32 identifier() const { return words[0] >> 16; }
    u64 word64(int at) const { return words[at] | (u64)words[at + 1] << 32; }
};
struct Repeat { u32 identifier, after; };
struct Fault { u32 what; int times; };
struct Region { u64 bytes; char *memory; };

struct QueuePair {
    const u32 *submissions;
    u32 *completions;
    const u32 *tail_doorbell, *head_doorbell;
    u32 depth;
    u32 fetched, posted, acknowledged, phase;  // the next entries
    std::vector<Command> commands;             // in flight
    std::vector<Repeat> repeats;               // to be posted
    std::vector<char> used;                    // 1 for identifiers in flight
};

struct Controller {
    const char *image;
    u64 blocks;
    u32 block_shift, max_bytes, delay, random;
    std::map<u64, Region> regions;  // by bus address
    std::map<u64, Fault> faults;    // by block
    std::vector<QueuePair> queues;
    pthread_t thread;
    bool stop;
    u64 counters[COUNTERS];
};

static u32 random_below(Controller &c, u32 limit) {
    c.random = c.random * 1664525u + 1013904223u;
    return (u64)c.random * limit >> 32;
}

static u32 refuse(Controller &c, Counter counter, u32 status) {
    c.counters[counter]++;
    return status;
}

static char *at_bus(Controller &c, u64 bus, u64 bytes) {
    auto found = c.regions.upper_bound(bus);
    if (found == c.regions.begin()) return nullptr;
    u64 offset = bus - (--found)->first;
    return offset + bytes <= found->second.bytes ? found->second.memory + offset : nullptr;
}

// Copies to where PRP1, PRP2 and the PRP list point. The status.
static u32 transfer(Controller &c, const Command &command, const char *from, u64 bytes) {
    u64 prp1 = command.word64(6), prp2 = command.word64(8), first = PAGE - prp1 % PAGE;
    u64 pages = 1 + (bytes > first ? (bytes - first + PAGE - 1) / PAGE : 0);
    const u64 *list = nullptr;
    if (pages == 1 && prp2) return refuse(c, POINTERS, INVALID_FIELD);  // reserved
    if (pages > 2) {
        u64 list_bytes = 8 * (pages - 1);
        bool in_page = prp2 % 8 == 0 && prp2 % PAGE + list_bytes <= PAGE;
        list = in_page ? (const u64 *)at_bus(c, prp2, list_bytes) : nullptr;
        if (!list) return refuse(c, POINTERS, INVALID_PRP_OFFSET);
    }
    for (u64 page = 0, done = 0; page < pages; page++) {
        u64 bus = page == 0 ? prp1 : pages == 2 ? prp2 : list[page - 1];
        u64 room = page == 0 ? first : PAGE, part = bytes - done < room ? bytes - done : room;
        char *to = at_bus(c, bus, part);
        if (!to || bus % (page ? PAGE : 4)) return refuse(c, POINTERS, INVALID_PRP_OFFSET);
        memcpy(to, from + done, part);
        done += part;
    }
    c.counters[BYTES] += bytes;
    return 0;
}

// The status, or another fault.
static u32 run(Controller &c, const Command &command) {
    const u32 *words = command.words;
    u64 slba = command.word64(10), blocks = (words[12] & 0xffff) + 1;
    u64 bytes = blocks << c.block_shift;
    u32 reserved = (words[0] & 0xff00) | words[2] | words[3] | words[4] | words[5];
    reserved |= words[12] >> 16 | words[13] | words[14] | words[15];
    if ((words[0] & 0xff) != READ || words[1] != NAMESPACE || reserved || bytes > c.max_bytes)
        return refuse(c, FIELDS, INVALID_FIELD);
    if (slba >= c.blocks || blocks > c.blocks - slba) return OUT_OF_RANGE;
    u32 what = 0;
    auto fault = c.faults.lower_bound(slba);
    if (fault != c.faults.end() && fault->first < slba + blocks && fault->second.times) {
        what = fault->second.what;
        if (what != NEVER) fault->second.times--;
    }
    if (what == NEVER || (what && what < NEVER)) return what;
    u32 status = transfer(c, command, c.image + (slba << c.block_shift), bytes);
    return status ? status : what;
}

// Whether the completion queue has an entry that the host has consumed.
static bool has_room(Controller &c, QueuePair &queue) {
    u32 head = __atomic_load_n(queue.head_doorbell, __ATOMIC_ACQUIRE), depth = queue.depth;
    u32 consumed = (head + depth - queue.acknowledged) % depth;
    if (head >= depth || consumed > (queue.posted + depth - queue.acknowledged) % depth)
        return refuse(c, DOORBELLS, false);
    queue.acknowledged = head;
    return (queue.posted + 1) % depth != head;
}

static void post(Controller &c, QueuePair &queue, u32 identifier, u32 status) {
    u32 *entry = queue.completions + 4 * queue.posted;
    entry[0] = entry[1] = 0;
    entry[2] = queue.fetched;
    u32 last = (identifier & 0xffff) | queue.phase << 16 | status << 17;
    __atomic_store_n(entry + 3, last, __ATOMIC_RELEASE);
    if (++queue.posted == queue.depth) queue.posted = 0, queue.phase ^= 1, c.counters[ROUNDS]++;
}

static void fetch(Controller &c, QueuePair &queue) {
    u32 tail = __atomic_load_n(queue.tail_doorbell, __ATOMIC_ACQUIRE);
    if (tail >= queue.depth) return (void)refuse(c, DOORBELLS, 0);
    for (; queue.fetched != tail; queue.fetched = (queue.fetched + 1) % queue.depth) {
        Command command;
        memcpy(command.words, queue.submissions + 16 * queue.fetched, sizeof command.words);
        command.delay = random_below(c, c.delay + 1);
        char &used = queue.used[command.identifier()];
        if (used || command.identifier() == 0xffff) c.counters[IDENTIFIERS]++;
        used = 1;
        queue.commands.push_back(command);
        c.counters[COMMANDS]++;
    }
    u64 in_flight = queue.commands.size();
    if (in_flight > c.counters[IN_FLIGHT]) c.counters[IN_FLIGHT] = in_flight;
}

static bool post_repeat(Controller &c, QueuePair &queue) {
    for (auto &repeat : queue.repeats) {
        if (repeat.after && !queue.commands.empty()) continue;
        post(c, queue, repeat.identifier, 0);
        repeat = queue.repeats.back();
        queue.repeats.pop_back();
        return true;
    }
    return false;
}

// Does one thing for a queue pair. Whether there was one.
static bool serve(Controller &c, QueuePair &queue) {
    fetch(c, queue);
    if ((queue.commands.empty() && queue.repeats.empty()) || !has_room(c, queue)) return false;
    if (post_repeat(c, queue)) return true;
    u32 chosen = random_below(c, queue.commands.size());
    if (queue.commands[chosen].delay) return queue.commands[chosen].delay--;
    Command command = queue.commands[chosen];
    u32 what = run(c, command), identifier = command.identifier();
    if (what == NEVER) return false;
    queue.commands[chosen] = queue.commands.back();
    queue.commands.pop_back();
    queue.used[identifier] = 0;
    for (auto &repeat : queue.repeats) repeat.after--;
    if (what == TWICE) queue.repeats.push_back({identifier, random_below(c, 8)});
    if (what >= FOREIGN) identifier ^= what & 0xffff;
    post(c, queue, identifier, what < NEVER ? what : 0);
    return true;
}

static void *work(void *argument) {
    Controller &c = *(Controller *)argument;
    while (!__atomic_load_n(&c.stop, __ATOMIC_RELAXED)) {
        bool busy = false;
        for (auto &queue : c.queues)
            for (u32 times = 1 + random_below(c, 8); times && serve(c, queue); times--) busy = true;
        if (!busy) sched_yield();
    }
    return nullptr;
}

extern "C" {
Controller *controller_new(
    const char *image, u64 blocks, u32 block_shift, u32 max_bytes, u32 delay, u32 seed
) {
    return new Controller{image, blocks, block_shift, max_bytes, delay, seed};
}
void controller_map(Controller *c, u64 bus, char *memory, u64 bytes) {
    c->regions[bus] = {bytes, memory};
}
void controller_fault(Controller *c, u64 block, u32 what, int times) {
    c->faults[block] = {what, times};
}
void controller_queue(
    Controller *c, const u32 *submissions, u32 *completions, const u32 *tail_doorbell,
    const u32 *head_doorbell, u32 depth
) {
    QueuePair queue{submissions, completions, tail_doorbell, head_doorbell, depth, 0, 0, 0, 1};
    queue.used.resize(1 << 16);
    c->queues.push_back(queue);
}
void controller_start(Controller *c) { pthread_create(&c->thread, nullptr, work, c); }
void controller_stop(Controller *c, u64 *counters) {
    __atomic_store_n(&c->stop, true, __ATOMIC_RELAXED);
    pthread_join(c->thread, nullptr);
    memcpy(counters, c->counters, sizeof c->counters);
    delete c;
}
}

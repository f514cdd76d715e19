// A client of unstale in C++, written from proto/PROTOCOL.md. It fits the parameters to the mean of its private rows.
#include <fcntl.h>
#include <dirent.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>

#include "wire.hpp"
using namespace wire;

constexpr int64_t WINDOW = 16 * 1024 * 1024, CHUNK_LEAST = 65536, CHUNKS_IN_FLIGHT = 16;
constexpr double HELLO_S = 2, AFTER_STOP_S = 3, GOODBYE_S = 5;

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static void say(const Bytes& text) { std::cout << text << std::endl; }
static Bytes text_of(double x) { std::ostringstream s; s << x; return s.str(); }
struct UserError : std::runtime_error { using runtime_error::runtime_error; };

static Bytes read_file(const Bytes& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw UserError("cannot read `" + path + "`: " + strerror(errno) + "; name a readable file");
    return {std::istreambuf_iterator<char>(in), {}};
}

struct Options {
    Bytes server = "tcp://127.0.0.1:5555", data, store, key, server_key;
    int64_t id = -1;
    double pause = 0;
};

// ---- the private data --------------------------------------------------------------------------------------------
// Rows of numbers; a row of one number stands for that number at every parameter.
struct Data {
    std::vector<double> mean;
    double rest = 0;                             // loss at the mean, for each column
    int64_t rows = 0;

    explicit Data(const Bytes& path) {
        std::istringstream lines(read_file(path));
        std::vector<std::vector<double>> all;
        for (Bytes line; std::getline(lines, line);) {
            if (line.empty()) continue;
            std::vector<double> row;
            std::istringstream cells(line);
            for (Bytes cell; std::getline(cells, cell, ',');) {
                char* end;
                row.push_back(strtod(cell.c_str(), &end));
                while (isspace(uint8_t(*end))) end++;
                if (end == cell.c_str() || *end || !std::isfinite(row.back()))
                    throw UserError("`" + path + "`, row " + std::to_string(all.size() + 1) + ": `" + cell + "` is no finite number");
            }
            if (!all.empty() && row.size() != all[0].size())
                throw UserError("`" + path + "`, row " + std::to_string(all.size() + 1) + ": all rows must have " + std::to_string(all[0].size()) + " numbers");
            all.push_back(row);
        }
        if (all.empty()) throw UserError("`" + path + "` has no rows; give at least one row of numbers");
        rows = int64_t(all.size());
        mean.resize(all[0].size());
        for (auto& r : all) for (size_t n = 0; n < r.size(); n++) mean[n] += r[n] / double(rows);
        for (auto& r : all) for (size_t n = 0; n < r.size(); n++) rest += 0.5 * (r[n] - mean[n]) * (r[n] - mean[n]) / double(rows);
    }
    double target(int64_t n) const { return mean[mean.size() == 1 ? 0 : n]; }
};

// ---- the updates without an ack, on disk -------------------------------------------------------------------------
struct Update {
    int64_t task = 0;
    Bytes run, header, payload;
    Numbers residual;                            // of top-k, if this update is accepted
    bool credited = false;                       // the transfer in chunks, section 4.7
    int64_t position = 0, have = 0, until = 0, chunk = CHUNK_BYTES, since_loss = 0, mark = 0, order = 0;
    bool announced() const { return int64_t(payload.size()) > CHUNK_BYTES; }
};

class Store {
    Bytes folder;
    int lock;
    static Bytes fail(const Bytes& path) { return "cannot write `" + path + "`: " + strerror(errno) + "; name another --store"; }
    void write(const Bytes& name, const Bytes& content) const {
        Bytes path = folder + "/" + name, temporary = path + ".new";
        int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        for (size_t n = 0; fd >= 0 && n < content.size();) {
            auto wrote = ::write(fd, content.data() + n, content.size() - n);
            if (wrote < 0) throw UserError(fail(temporary));
            n += size_t(wrote);
        }
        if (fd < 0 || fsync(fd) || close(fd) || rename(temporary.c_str(), path.c_str())) throw UserError(fail(path));
        int dir = open(folder.c_str(), O_RDONLY | O_DIRECTORY);
        if (dir < 0 || fsync(dir) || close(dir)) throw UserError(fail(folder));
    }
    Bytes path_of(int64_t task) const { return folder + "/update-" + std::to_string(task); }

  public:
    std::map<int64_t, Update> updates;
    Bytes home, residual_run;
    int64_t starts = 0, residual_task = 0;
    Numbers residual;

    explicit Store(const Bytes& path) : folder(path) {
        if (mkdir(path.c_str(), 0700) && errno != EEXIST) throw UserError(fail(path));
        lock = open((path + "/lock").c_str(), O_RDWR | O_CREAT, 0600);
        if (lock < 0) throw UserError(fail(path));
        if (flock(lock, LOCK_EX | LOCK_NB)) throw UserError("`" + path + "` is in use by another process; name another --store");
        if (!access((path + "/home").c_str(), R_OK)) std::istringstream(read_file(path + "/home")) >> home >> starts;
        if (!is_hex(home, 32)) { home = random_token(); starts = 0; }
        write("home", home + " " + std::to_string(++starts) + "\n");
        std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
        while (auto entry = dir ? readdir(dir.get()) : nullptr) {
            Bytes name = entry->d_name;
            bool temporary = name.size() > 4 && name.substr(name.size() - 4) == ".new";
            if (name.rfind("update-", 0) == 0 && !temporary) load(name);
        }
        if (!access((path + "/residual").c_str(), R_OK)) {
            Bytes all = read_file(path + "/residual");
            auto line = all.find('\n');
            std::istringstream(all.substr(0, line)) >> residual_run >> residual_task;
            residual.resize((all.size() - line - 1) / 4);
            memcpy(residual.data(), all.data() + line + 1, 4 * residual.size());
        }
    }
    void load(const Bytes& name) {
        Bytes all = read_file(folder + "/" + name), sum;
        auto line = all.find('\n');
        Update u;
        size_t header = 0, payload = 0;
        std::istringstream(all.substr(0, line)) >> sum >> u.run >> u.task >> header >> payload;
        if (line == Bytes::npos || all.size() - line - 1 < header + payload || checksum(all.substr(line + 1)) != sum)
            throw UserError("`" + folder + "/" + name + "` is damaged; delete it, and its update is lost");
        u.header = all.substr(line + 1, header);
        u.payload = all.substr(line + 1 + header, payload);
        u.residual.resize((all.size() - line - 1 - header - payload) / 4);
        memcpy(u.residual.data(), all.data() + line + 1 + header + payload, 4 * u.residual.size());
        updates[u.task] = std::move(u);
    }
    Update& keep(Update u) {
        Bytes body = u.header + u.payload + Bytes(reinterpret_cast<const char*>(u.residual.data()), 4 * u.residual.size());
        write("update-" + std::to_string(u.task), checksum(body) + " " + u.run + " " + std::to_string(u.task) + " " +
              std::to_string(u.header.size()) + " " + std::to_string(u.payload.size()) + "\n" + body);
        return updates[u.task] = std::move(u);
    }
    void settle(int64_t task, bool accepted) {
        auto at = updates.find(task);
        if (at == updates.end()) return;
        auto& u = at->second;
        if (accepted && !u.residual.empty() && (u.run != residual_run || u.task > residual_task)) {
            residual = u.residual; residual_run = u.run; residual_task = u.task;
            write("residual", u.run + " " + std::to_string(task) + "\n" + Bytes(reinterpret_cast<const char*>(residual.data()), 4 * residual.size()));
        }
        unlink(path_of(task).c_str());
        updates.erase(at);
    }
    Numbers residual_now(const Bytes& run) const {
        for (auto at = updates.rbegin(); at != updates.rend(); ++at)
            if (at->second.run == run && !at->second.residual.empty()) return at->second.residual;
        return run == residual_run ? residual : Numbers();
    }
};

// ---- the session -------------------------------------------------------------------------------------------------
struct Ended { int code; Bytes text; };
static volatile sig_atomic_t interrupted = 0;

class Client {
    const Options& o;
    const Data data;
    Store store;
    void *context = zmq_ctx_new(), *socket = nullptr, *monitor = nullptr;
    Bytes session = random_token(), public_key, secret_key, server_public;
    Value welcome;                               // nil before the first
    bool in = false;
    int broken = 0;                              // handshakes without a cause
    double next_hello = 0, next_beat = 0, next_step = 0, last_heard = 0;
    int64_t version = 0, newest = 0, greatest = 0, beat = 0, heard = -1, parameters = 0, behind = 0, monitors = 0, sends = 0;

    Value task;                                  // the current one; nil: none
    Numbers base, w, velocity;                   // its training
    int64_t step = 0, steps = 0;
    double loss = 0;
    bool training = false;

    struct Model { Bytes run, checksum, bytes; int64_t version = -1, until = 0, mark = 0; int wrong = 0, chunks = 0; bool gap = false; } model;
    bool receiving = false;

    // -- the socket
    void keys() {
        auto field = [](const Bytes& path, const Bytes& name) -> Bytes {
            std::istringstream lines(read_file(path));
            for (Bytes line; std::getline(lines, line);) {
                auto at = line.find(name + " ="), from = line.find('"'), to = line.rfind('"');
                if (at != Bytes::npos && line.find_first_not_of(' ') == at && to == from + 41) return line.substr(from + 1, 40);
            }
            throw UserError("`" + path + "` has no `" + name + "` of 40 characters; make the file with `unstale keys new`");
        };
        struct stat s;
        if (!stat(o.key.c_str(), &s) && (s.st_mode & 077)) throw UserError("`" + o.key + "` is readable by others; run `chmod 600 " + o.key + "`");
        public_key = field(o.key, "public-key");
        secret_key = field(o.key, "secret-key");
        server_public = o.server_key.empty() ? field(o.key, "server-key") : field(o.server_key, "public-key");
    }
    void connect() {
        disconnect(0);
        socket = zmq_socket(context, ZMQ_DEALER);
        auto set = [&](int option, int value) { zmq_setsockopt(socket, option, &value, sizeof value); };
        set(ZMQ_IMMEDIATE, 1);
        set(ZMQ_RECONNECT_IVL, 100);
        set(ZMQ_RECONNECT_IVL_MAX, 2000);
        if (!o.key.empty()) {
            zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public_key.c_str(), 41);
            zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret_key.c_str(), 41);
            if (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, server_public.c_str(), 41)) throw UserError("the server's key is no key of ZeroMQ; copy the file again");
        }
        Bytes where = "inproc://monitor-" + std::to_string(monitors++);
        zmq_socket_monitor(socket, where.c_str(), ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL);
        monitor = zmq_socket(context, ZMQ_PAIR);
        zmq_connect(monitor, where.c_str());
        if (zmq_connect(socket, o.server.c_str())) throw UserError("`" + o.server + "` is no address; give --server tcp://HOST:PORT");
        last_heard = now();
    }
    void disconnect(int linger_ms) {
        if (!socket) return;
        zmq_socket_monitor(socket, nullptr, 0);
        zmq_close(monitor);
        zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        zmq_close(socket);
        socket = nullptr;
    }
    bool send_raw(const Bytes& header, const char* payload = nullptr, size_t size = 0) {
        int more = size ? ZMQ_SNDMORE : 0;
        if (zmq_send(socket, header.data(), header.size(), ZMQ_DONTWAIT | more) < 0) return false;
        return !size || zmq_send(socket, payload, size, 0) >= 0;
    }
    bool send(const Bytes& type, const Value& fields) { return send_raw(encode(type, fields)); }
    void events() {
        for (zmq_msg_t m;;) {
            zmq_msg_init(&m);
            if (zmq_msg_recv(&m, monitor, ZMQ_DONTWAIT) < 0) return;
            uint16_t event; uint32_t value;
            memcpy(&event, zmq_msg_data(&m), 2); memcpy(&value, static_cast<char*>(zmq_msg_data(&m)) + 2, 4);
            zmq_msg_close(&m); zmq_msg_init(&m);
            zmq_msg_recv(&m, monitor, 0); zmq_msg_close(&m);
            if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
                throw Ended{1, o.key.empty() ? "the server requires a key; give --key" : "the server refuses the key " + public_key};
            if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL && value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
                throw Ended{1, o.key.empty() ? "the server requires a key; give --key" : "the server uses plain text; omit --key"};
            if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL && !o.key.empty() && ++broken == 3)
                std::cerr << "client: a handshake with " << o.server << " breaks off: the server may have another key than --key names; the client tries again" << std::endl;
            if (event == ZMQ_EVENT_DISCONNECTED) greet(0);
        }
    }

    // -- joining
    void greet(double wait) { in = false; next_hello = std::max(next_hello, now() + wait); }
    void hello() {
        Value holding = Value::array(), v = Value::map(), start = Value::map();
        std::set<int64_t, std::greater<int64_t>> tasks;
        for (auto& u : store.updates) tasks.insert(u.first);
        if (task.kind == Value::Map) tasks.insert(task.num("task_id"));
        for (auto id : tasks) if (holding.a.size() < 64) holding.a.insert(holding.a.begin(), id);
        start.set("home", store.home).set("number", store.starts);
        v.set("client_id", o.id).set("session", session).set("holding", holding);
        v.set("encodings", Value::array({"float32", "bfloat16", "float16", "int8", "top-k"})).set("start", start);
        next_hello = now() + (send("hello", v) ? HELLO_S : 0.1);   // unsent: no connection yet
    }
    void leave(int code, const Bytes& text, const Bytes& reason) {
        send("bye", Value::map().set("reason", reason.substr(0, 300)));
        throw Ended{code, text};
    }
    void on_welcome(const Value& v) {
        if (v.num("client_id") != o.id) throw Refused("malformed-header", "the welcome is for another client");
        Bytes run = v.str("run_id");
        bool other = welcome.kind == Value::Nil || welcome.str("run_id") != run;
        if (v.str("signature") != signature(*v.get("tensors"), v.get("buffers")))
            leave(1, "the signature of the server's model does not fit its tensors", "wrong signature");
        parameters = numbers_of(*v.get("tensors"));
        behind = v.get("buffers") ? numbers_of(*v.get("buffers")) : 0;
        Bytes name = v.get("training")->str("name");
        if (!one_of("app,sgd,fedprox,gradient", name) || v.num("extra"))
            leave(1, "this client has no training `" + name + "`; start the server with app, sgd, fedprox or gradient", "training not supported");
        if (data.mean.size() != 1 && int64_t(data.mean.size()) != parameters) {
            Bytes text = "the rows of --data have " + std::to_string(data.mean.size()) + " numbers; give 1 or " + std::to_string(parameters) + ", the parameters of the model";
            leave(1, text, text);
        }
        if (auto objective = v.get("objective"); objective && objective->str("name") != "regression")
            leave(1, "this client has no objective `" + objective->str("name") + "`; start the server with --initial or with regression", "objective not supported");
        if (4 * double(parameters) + 4 * double(behind) > double(FRAMES_MAX * FRAME_BYTES_MAX)) leave(1, "the model is over 16 GiB", "model too large");
        welcome = v;
        version = other ? v.num("version") : std::max(version, v.num("version"));
        if (other) {
            drop();
            heard = -1; greatest = 0; model = Model();
            std::vector<int64_t> old;
            for (auto& u : store.updates) if (u.second.run != run) old.push_back(u.first);
            for (auto id : old) store.settle(id, false);
            if (!store.updates.empty()) greatest = store.updates.rbegin()->first;
            newest = greatest;
            say("joined run " + run + ": " + std::to_string(parameters) + " parameters, version " + std::to_string(version));
        }
        in = true;
        next_beat = now();
        for (auto& u : store.updates) send_update(u.second);
        if (receiving) send_credit(true);
    }
    void heartbeat() {
        Value v = Value::map();
        v.set("number", beat++).set("version", version).set("newest_task", newest);
        if (heard >= 0) v.set("heard", heard);
        send("heartbeat", v);
        next_beat = now() + welcome.real("heartbeat_s");
    }

    // -- tasks
    void drop() { task = Value(); training = receiving = false; base.clear(); w.clear(); velocity.clear(); }
    void give_back(const Bytes& reason, const Bytes& text) {
        say("task " + std::to_string(task.num("task_id")) + " given back: " + reason + ", " + text);
        send("error", Value::map().set("reason", reason).set("message", text).set("task_id", task.num("task_id")));
        newest = 0;
        drop();
    }
    Encoding encoding(const Bytes& name) const {
        Encoding e{name, 0, 0};
        if (auto plan = welcome.get("encoding")) { e.block = plan->num("block"); e.keep = plan->num("keep"); }
        return e;
    }
    Bytes plan(const Bytes& which) const { auto p = welcome.get("encoding"); return p ? p->str(which) : "float32"; }
    void fits(const Value& v) const {
        Bytes name = v.str("encoding", "float32");
        if (v.str("signature") != welcome.str("signature")) throw Refused("wrong-signature", "the task is for another model");
        if (name != "float32" && name != plan("models")) throw Refused("malformed-payload", "the encoding is not that of the run");
        if (v.num("payload_bytes") != payload_size(encoding(name), parameters, behind)) throw Refused("wrong-size", "the model has another size");
    }
    void on_task(const Value& v, const std::vector<Bytes>& frames) {
        if (welcome.kind == Value::Nil || v.str("run_id", welcome.str("run_id")) != welcome.str("run_id")) return;
        if (v.num("task_id") <= greatest) return;
        bool whole = !v.get("checksum") || !frames.empty();
        Bytes payload;
        try {
            fits(v);
            if (whole) payload = join(frames, v.num("payload_bytes"));
        } catch (const Refused& e) {  // the task does not count: a copy of it may fit
            send("error", Value::map().set("reason", e.reason).set("message", e.what()).set("task_id", v.num("task_id")));
            return say("task " + std::to_string(v.num("task_id")) + " refused: " + e.reason + ", " + e.what());
        }
        if (auto accepted = v.get("accepted_task")) {
            std::vector<int64_t> closed;
            for (auto& u : store.updates) if (u.first >= accepted->i) closed.push_back(u.first);
            for (auto id : closed) store.settle(id, id == accepted->i);
        }
        drop();
        task = v;
        greatest = newest = v.num("task_id");
        version = std::max(version, v.num("version"));
        try {
            if (whole) return start(payload);
        } catch (const Refused& e) { return give_back(e.reason, e.what()); }
        if (model.run != welcome.str("run_id") || model.version != v.num("version") || model.checksum != v.str("checksum")) {
            model = Model();
            model.run = welcome.str("run_id"); model.version = v.num("version"); model.checksum = v.str("checksum");
        }
        receiving = true;
        send_credit(true);
        if (int64_t(model.bytes.size()) == v.num("payload_bytes")) complete();
    }
    void send_credit(bool again) {
        int64_t have = int64_t(model.bytes.size()), all = task.num("payload_bytes");
        model.until = std::min(all, have + WINDOW);
        model.mark = beat;
        model.gap = model.gap && !again;
        Value v = Value::map();
        v.set("task_id", task.num("task_id")).set("have", have).set("until", model.until);
        if (again) v.set("again", true);
        send("credit", v);
    }
    void on_chunk(const Value& v, const std::vector<Bytes>& frames) {
        if (!receiving || v.num("task_id") != task.num("task_id")) return;
        int64_t have = int64_t(model.bytes.size()), at = v.num("offset"), size = frames.size() == 1 ? int64_t(frames[0].size()) : 0;
        if (size < 1 || size > FRAME_BYTES_MAX || at + size > task.num("payload_bytes")) throw Refused("wrong-size", "a chunk has the wrong size");
        model.mark = beat;
        if (at < have) return;
        if (at > have) {
            if (!model.gap) { send_credit(true); model.gap = true; }
            return;
        }
        if (at + size > model.until) throw Refused("no-credit", "a chunk ends beyond the credit");
        model.gap = false;
        model.bytes += frames[0];
        if (int64_t(model.bytes.size()) == task.num("payload_bytes")) complete();
        else if (++model.chunks % 2 == 0) send_credit(false);
    }
    void complete() {
        if (checksum(model.bytes) != model.checksum) {
            model.bytes.clear();
            if (++model.wrong == 3) return give_back("wrong-checksum", "the model is damaged");
            return send_credit(true);
        }
        send_credit(false);
        receiving = false;
        try { start(model.bytes); } catch (const Refused& e) { give_back(e.reason, e.what()); }
    }

    // -- training: steps of the loss |w - row|^2 / 2, in the mean over the rows
    void start(const Bytes& payload) {
        base = decode_numbers(encoding(task.str("encoding", "float32")), payload, parameters, behind);
        for (float x : base) if (!std::isfinite(x)) throw Refused("non-finite", "the model is not finite");
        auto& plan = *welcome.get("training");
        auto settings = welcome.get("settings");
        auto asked = settings ? settings->get("steps") : nullptr;
        int64_t batch = std::min(plan.num("batch_size", data.rows), data.rows);
        steps = asked && asked->kind == Value::Int && asked->i > 0 ? asked->i
              : plan.get("epochs") ? plan.num("epochs") * ((data.rows + batch - 1) / batch) : plan.num("steps", 5);
        if (plan.str("name") == "gradient") steps = 1;
        w = base;
        velocity.assign(parameters, 0.0f);
        step = 0; loss = 0; training = true; next_step = now() + o.pause;
        say("task " + std::to_string(task.num("task_id")) + ": training");
    }
    void train() {
        auto& plan = *welcome.get("training");
        bool gradient = plan.str("name") == "gradient";
        float rate = float(task.real("learning_rate")), momentum = float(plan.real("momentum")), decay = float(plan.real("weight_decay"));
        float mu = plan.str("name") == "fedprox" ? float(plan.real("mu")) : 0;
        double sum = data.mean.size() == 1 ? data.rest * double(parameters) : data.rest;
        for (int64_t n = 0; n < parameters; n++) {
            double distance = double(w[n]) - data.target(n);
            sum += 0.5 * distance * distance;
            float g = float(distance);
            if (gradient) { w[n] = g; continue; }
            g += decay * w[n] + mu * (w[n] - base[n]);
            velocity[n] = momentum * velocity[n] + g;
            w[n] -= rate * velocity[n];
        }
        loss += sum;
        next_step = now() + o.pause;
        if (++step == steps) finish(gradient);
    }
    void finish(bool gradient) {
        Numbers sent = w;
        if (!gradient) for (int64_t n = 0; n < parameters; n++) sent[n] = base[n] - w[n];
        loss /= double(steps);
        for (float x : sent) if (!std::isfinite(x) || !std::isfinite(loss)) return give_back("non-finite", "the training diverged");
        Encoding e = encoding(plan("updates"));
        Update u;
        if (e.name == "top-k") {
            u.residual = store.residual_now(welcome.str("run_id"));
            u.residual.resize(parameters);
            for (int64_t n = 0; n < parameters; n++) sent[n] += u.residual[n];
        }
        u.payload = encode_numbers(e, sent, parameters);
        Numbers got = decode_numbers(e, u.payload, parameters, behind);
        if (!gradient && std::all_of(got.begin(), got.begin() + parameters, [](float x) { return x == 0; }))
            return give_back("unavailable", "the training changes nothing");
        for (size_t n = 0; n < u.residual.size(); n++) u.residual[n] = sent[n] - got[n];
        u.task = task.num("task_id");
        u.run = welcome.str("run_id");
        Value v = Value::map();
        v.set("task_id", u.task).set("base_version", task.num("version")).set("kind", gradient ? "gradient" : "delta");
        v.set("num_examples", data.rows).set("steps", steps).set("loss", std::min(loss, 3.4028234663852886e38));
        v.set("learning_rate", task.real("learning_rate")).set("signature", task.str("signature"));
        v.set("payload_bytes", int64_t(u.payload.size()));
        if (u.announced()) v.set("checksum", checksum(u.payload));
        if (e.name != "float32") v.set("encoding", e.name);
        u.header = encode("update", v);
        drop();
        send_update(store.keep(std::move(u)));
    }

    // -- updates
    void send_update(Update& u) {
        u.mark = beat;
        u.order = ++sends;
        if (!in) return;                         // after the welcome
        if (u.announced()) { u.until = u.position; send_raw(u.header); }
        else send_raw(u.header, u.payload.data(), u.payload.size());
    }
    void on_credit(const Value& v) {
        auto at = store.updates.find(v.num("task_id"));
        if (at == store.updates.end() || !at->second.announced()) return;
        auto& u = at->second;
        int64_t have = v.num("have");
        bool again = v.num("again");
        if (have > int64_t(u.payload.size()) || (!again && have < u.have)) return;
        u.mark = beat;
        if (again) {
            if (u.credited && u.position > have) u.chunk = std::clamp(u.since_loss / 16, CHUNK_LEAST, CHUNK_BYTES), u.since_loss = 0;
            u.position = have;
        }
        u.credited = true;
        u.since_loss += std::max<int64_t>(0, have - u.have);
        u.have = have;
        u.until = std::min(v.num("until"), int64_t(u.payload.size()));
    }
    bool send_chunk() {                          // at most one, so that heartbeats and answers come between
        for (auto& [id, u] : store.updates) {
            if (!in || !u.credited || u.position >= u.until || u.position - u.have >= CHUNKS_IN_FLIGHT * u.chunk) continue;
            auto size = size_t(std::min(u.chunk, u.until - u.position));
            Value v = Value::map();
            v.set("task_id", id).set("offset", u.position);
            if (!send_raw(encode("chunk", v), u.payload.data() + u.position, size)) return false;
            u.position += int64_t(size);
            u.mark = beat;
            return true;
        }
        return false;
    }
    void on_heartbeat(const Value& v) {
        if (v.num("number") >= beat) return;
        heard = std::max(heard, v.num("number"));
        version = std::max(version, v.num("version"));
        for (auto& [id, u] : store.updates)      // the update, its ack, a chunk or a credit was lost
            if (v.num("number") >= u.mark) send_update(u);
        if (receiving && v.num("number") >= model.mark) send_credit(true);
    }
    void on_ack(const Value& v) {
        int64_t id = v.num("task_id");
        bool accepted = v.str("first_outcome") == "accepted";
        if (store.updates.count(id)) say("task " + std::to_string(id) + ": " + v.str("outcome") + (accepted ? "" : ", " + v.str("reason")));
        auto acked = store.updates.find(id);     // answers are in order: an earlier update or its ack was lost
        if (acked != store.updates.end() && !acked->second.announced())
            for (auto& [other, u] : store.updates) if (!u.announced() && u.order < acked->second.order) send_update(u);
        if (v.str("reason") == "unknown-task" && id == greatest) greatest = newest = 0;
        store.settle(id, accepted);
    }

    // -- the end
    void on_stop(const Value& v) {
        Bytes reason = v.str("reason");
        if (reason == "superseded") throw Ended{1, "another process has taken over client " + std::to_string(o.id)};
        if (v.num("failed")) leave(1, "the run has failed: " + v.str("message", "the server gives no cause"), "");
        send("bye", Value::map().set("reason", ""));
        if (reason == "shutdown") return next_hello = 0, greet(AFTER_STOP_S);
        for (double end = now() + GOODBYE_S; now() < end;) {
            Bytes header;
            std::vector<Bytes> frames;
            zmq_pollitem_t item = {socket, 0, ZMQ_POLLIN, 0};
            zmq_poll(&item, 1, 100);
            while (receive(header, frames))
                try { if (decode(header).str("type") == "bye") end = 0; } catch (const Refused&) {}
        }
        throw Ended{0, "the run is finished at version " + std::to_string(v.num("version"))};
    }
    void on_error(const Value& v) {
        Bytes reason = v.str("reason"), text = reason + ": " + v.str("message");
        if (one_of("unknown-client,wrong-protocol,not-the-owner", reason)) throw Ended{1, "the server refuses client " + std::to_string(o.id) + ": " + text};
        if (reason == "hello-first") return greet(0);
        if (reason == "rate-limited" || reason == "not-stored" || reason == "no-credit") return;
        if (reason == "expired-task") { if (task.kind == Value::Map && v.num("task_id") == task.num("task_id")) drop(); return; }
        std::cerr << "the server refuses a message: " << text << std::endl;
        if (reason == "quarantined") greet(HELLO_S);
    }
    bool receive(Bytes& header, std::vector<Bytes>& frames) {
        frames.clear();
        zmq_msg_t m;
        for (bool first = true, more = true; more; first = false) {
            zmq_msg_init(&m);
            if (zmq_msg_recv(&m, socket, first ? ZMQ_DONTWAIT : 0) < 0) { zmq_msg_close(&m); return false; }
            Bytes bytes(static_cast<char*>(zmq_msg_data(&m)), zmq_msg_size(&m));
            more = zmq_msg_more(&m);
            zmq_msg_close(&m);
            if (first) header = std::move(bytes); else frames.push_back(std::move(bytes));
        }
        last_heard = now();
        return true;
    }
    void on_message(const Bytes& header, const std::vector<Bytes>& frames) {
        try {
            Value v = decode(header);
            Bytes type = v.str("type");
            if (type == "welcome") on_welcome(v);
            else if (type == "task") on_task(v, frames);
            else if (type == "chunk") on_chunk(v, frames);
            else if (type == "credit") on_credit(v);
            else if (type == "ack") on_ack(v);
            else if (type == "heartbeat") on_heartbeat(v);
            else if (type == "stop") on_stop(v);
            else if (type == "error") on_error(v);
            else if (type != "bye") throw Refused("unexpected-type", "a client accepts no " + type);
        } catch (const Refused& e) {
            send("error", Value::map().set("reason", e.reason).set("message", Bytes(e.what()).substr(0, 300)));
        }
    }
    void loop() {
        Bytes header;
        std::vector<Bytes> frames;
        for (;;) {
            if (interrupted) leave(0, "interrupted; the same command continues", "interrupted");
            double t = now();
            if (in && t - last_heard > welcome.real("lease_s")) { connect(); greet(0); }
            if (!in && t >= next_hello) hello();
            if (in && t >= next_beat) heartbeat();
            if (training && t >= next_step) train();
            bool busy = send_chunk();
            double next = std::min(in ? next_beat : next_hello, training ? next_step : t + 1);
            zmq_pollitem_t items[] = {{socket, 0, ZMQ_POLLIN, 0}, {monitor, 0, ZMQ_POLLIN, 0}};
            zmq_poll(items, 2, busy ? 0 : std::clamp(long(std::ceil(1000 * (next - now()))), 0L, 1000L));
            for (int n = 0; n < 32 && receive(header, frames); n++) on_message(header, frames);
            events();
        }
    }

  public:
    explicit Client(const Options& options) : o(options), data(o.data), store(o.store) { if (!o.key.empty()) keys(); }
    int run() {
        Ended end{0, ""};
        try { connect(); loop(); } catch (const Ended& e) { end = e; }
        disconnect(2000);
        zmq_ctx_term(context);
        (end.code ? std::cerr : std::cout) << (end.code ? "client: " : "") << end.text << std::endl;
        return end.code;
    }
};

static Options parse(int argc, char** argv) {
    Options o;
    const char* usage = "usage: client --id N --data FILE [--server ADDRESS] [--store FOLDER] [--key FILE] [--server-key FILE] [--pause SECONDS]";
    std::map<Bytes, Bytes*> texts = {{"--server", &o.server}, {"--data", &o.data}, {"--store", &o.store}, {"--key", &o.key}, {"--server-key", &o.server_key}};
    for (int n = 1; n < argc; n += 2) {
        Bytes name = argv[n], value = n + 1 < argc ? argv[n + 1] : "";
        char* end = nullptr;
        if (texts.count(name)) *texts[name] = value;
        else if (name == "--id") o.id = strtoll(value.c_str(), &end, 10);
        else if (name == "--pause") o.pause = strtod(value.c_str(), &end);
        else throw UserError("`" + name + "` is no option; " + usage);
        if (value.empty() || (end && *end)) throw UserError("`" + name + "` needs a value, not `" + value + "`; " + usage);
    }
    if (o.id < 0 || o.id >= 1000000) throw UserError(Bytes("give --id, a number from 0 to 999999; ") + usage);
    if (!(o.pause >= 0 && o.pause <= 3600)) throw UserError("`--pause` is " + text_of(o.pause) + "; give seconds from 0 to 3600");
    if (o.data.empty()) throw UserError(Bytes("give --data, a file of rows of numbers; ") + usage);
    if (o.store.empty()) o.store = "unstale-cpp-" + std::to_string(o.id);
    return o;
}

int main(int argc, char** argv) try {
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = 1; };
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    if (sodium_init() < 0) throw UserError("libsodium does not start");
    Options o = parse(argc, argv);
    return Client(o).run();
} catch (const UserError& e) {
    std::cerr << "client: " << e.what() << "\n";
    return 2;
}

// The wire contract of unstale (proto/PROTOCOL.md): msgpack, headers and their fields, encodings, signature, checksum.
#pragma once
#include <sodium.h>
#include <xxhash.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace wire {
using Bytes = std::string;

constexpr int64_t FRAME_BYTES_MAX = 4194304, CHUNK_BYTES = 4194304, FRAMES_MAX = 4096;
constexpr size_t HEADER_BYTES_MAX = 65536, STRING_BYTES_MAX = 4000, MAP_ENTRIES_MAX = 64, TENSORS_MAX = 2000;
constexpr int DEPTH_MAX = 64;

// A message that is refused, with a reason of section 6.
struct Refused : std::runtime_error {
    std::string reason;
    Refused(std::string r, const std::string& text) : std::runtime_error(text), reason(std::move(r)) {}
};

[[noreturn]] inline void malformed(const std::string& text) { throw Refused("malformed-header", text); }

// ---- msgpack -----------------------------------------------------------------------------------------------------
struct Value {
    enum Kind { Nil, Bool, Int, Float, Str, Arr, Map } kind = Nil;
    int64_t i = 0;
    double f = 0;
    Bytes s;
    std::vector<Value> a;                        // of an array, or the values of a map
    std::vector<Bytes> k;                        // the keys of a map
    Value() = default;
    Value(bool v) : kind(Bool), i(v) {}
    Value(int v) : kind(Int), i(v) {}
    Value(int64_t v) : kind(Int), i(v) {}
    Value(double v) : kind(Float), f(v) {}
    Value(const char* v) : kind(Str), s(v) {}
    Value(Bytes v) : kind(Str), s(std::move(v)) {}
    static Value array(std::vector<Value> v = {}) { Value r; r.kind = Arr; r.a = std::move(v); return r; }
    static Value map() { Value r; r.kind = Map; return r; }
    Value& set(const Bytes& key, Value v) {      // the last of equal keys counts
        for (size_t n = 0; n < k.size(); n++)
            if (k[n] == key) { a[n] = std::move(v); return *this; }
        k.push_back(key); a.push_back(std::move(v));
        return *this;
    }
    const Value* get(const Bytes& key) const {   // null where the field is absent or nil
        for (size_t n = 0; n < k.size(); n++)
            if (k[n] == key) return a[n].kind == Nil ? nullptr : &a[n];
        return nullptr;
    }
    int64_t num(const Bytes& key, int64_t none = 0) const { auto v = get(key); return v ? v->i : none; }
    double real(const Bytes& key, double none = 0) const {
        auto v = get(key);
        return !v ? none : v->kind == Int ? double(v->i) : v->f;
    }
    Bytes str(const Bytes& key, const Bytes& none = "") const { auto v = get(key); return v ? v->s : none; }
    bool operator==(const Value& o) const {
        if (kind != o.kind || i != o.i || f != o.f || s != o.s || a.size() != o.a.size()) return false;
        if (kind != Map) return a == o.a;
        for (size_t n = 0; n < k.size(); n++) {
            auto at = std::find(o.k.begin(), o.k.end(), k[n]);
            if (at == o.k.end() || !(o.a[at - o.k.begin()] == a[n])) return false;
        }
        return true;
    }
};

inline void put_be(Bytes& out, uint64_t v, int n) { while (n--) out += char(v >> (8 * n)); }

inline void put_length(Bytes& out, size_t n, int fix, size_t fix_max, int wide8, int wide16) {
    if (n <= fix_max) out += char(fix | n);
    else if (wide8 && n < 256) { out += char(wide8); out += char(n); }
    else { out += char(wide16); put_be(out, n, 2); }
}

inline void pack(Bytes& out, const Value& v) {
    switch (v.kind) {
        case Value::Nil: out += char(0xc0); break;
        case Value::Bool: out += char(0xc2 + v.i); break;
        case Value::Int: {
            auto n = uint64_t(v.i);
            if (v.i >= -32 && v.i < 128) out += char(v.i);
            else if (v.i >= 0)
                for (int w = 0; w < 4; w++) {
                    if (w < 3 && n >> (8 << w)) continue;
                    out += char(0xcc + w); put_be(out, n, 1 << w); break;
                }
            else
                for (int w = 0; w < 4; w++) {
                    if (w < 3 && v.i < -(int64_t(1) << ((8 << w) - 1))) continue;
                    out += char(0xd0 + w); put_be(out, n, 1 << w); break;
                }
            break;
        }
        case Value::Float: { uint64_t b; memcpy(&b, &v.f, 8); out += char(0xcb); put_be(out, b, 8); break; }
        case Value::Str: put_length(out, v.s.size(), 0xa0, 31, 0xd9, 0xda); out += v.s; break;
        case Value::Arr: put_length(out, v.a.size(), 0x90, 15, 0, 0xdc); for (auto& e : v.a) pack(out, e); break;
        case Value::Map:
            put_length(out, v.a.size(), 0x80, 15, 0, 0xde);
            for (size_t n = 0; n < v.a.size(); n++) { pack(out, Value(v.k[n])); pack(out, v.a[n]); }
    }
}

inline int64_t characters(const Bytes& s) {      // of UTF-8 text; -1 if it is not
    int64_t count = 0;
    for (size_t n = 0; n < s.size(); count++) {
        auto c = uint8_t(s[n]);
        size_t len = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
        if (!len || n + len > s.size()) return -1;
        uint32_t code = len == 1 ? c : c & (0xff >> (len + 1));
        for (size_t m = 1; m < len; m++) {
            if ((uint8_t(s[n + m]) & 0xc0) != 0x80) return -1;
            code = code << 6 | (uint8_t(s[n + m]) & 0x3f);
        }
        if ((len == 3 && code < 0x800) || (len == 4 && code < 0x10000) || code > 0x10ffff || code >> 11 == 27) return -1;
        n += len;
    }
    return count;
}

class Unpacker {
    const Bytes& in;
    size_t at = 0;
    uint64_t be(int n) {
        uint64_t v = 0;
        for (auto& c : take(n)) v = v << 8 | uint8_t(c);
        return v;
    }
    Bytes take(size_t n) {
        if (n > in.size() - at) malformed("the header is cut off");
        at += n;
        return in.substr(at - n, n);
    }
    Value text(size_t n) {
        if (n > STRING_BYTES_MAX) malformed("a text is too long");
        Value v(take(n));
        if (characters(v.s) < 0) malformed("a text is not UTF-8");
        return v;
    }
    Value array(size_t n, int depth) {
        if (n > TENSORS_MAX) malformed("an array is too long");
        Value v = Value::array();
        while (n--) v.a.push_back(next(depth + 1));
        return v;
    }
    Value map(size_t n, int depth) {
        if (n > MAP_ENTRIES_MAX) malformed("a map is too long");
        Value v = Value::map();
        while (n--) {
            Value key = next(depth + 1);
            if (key.kind != Value::Str) malformed("a key is not a string");
            v.set(key.s, next(depth + 1));
        }
        return v;
    }
    Value next(int depth) {
        if (depth > DEPTH_MAX) malformed("the header is nested too deeply");
        auto c = uint8_t(take(1)[0]);
        if (c < 0x80) return int(c);
        if (c >= 0xe0) return int(int8_t(c));
        if (c < 0x90) return map(c & 15, depth);
        if (c < 0xa0) return array(c & 15, depth);
        if (c < 0xc0) return text(c & 31);
        switch (c) {
            case 0xc0: return {};
            case 0xc2: case 0xc3: return c == 0xc3;
            case 0xca: { auto b = uint32_t(be(4)); float f; memcpy(&f, &b, 4); return double(f); }
            case 0xcb: { auto b = be(8); double f; memcpy(&f, &b, 8); return f; }
            case 0xcc: case 0xcd: case 0xce: return int64_t(be(1 << (c - 0xcc)));
            case 0xcf: {                         // beyond int64: an integer that no field may hold
                auto n = be(8);
                Value v(int64_t(n > INT64_MAX ? INT64_MIN : n));
                v.f = n > INT64_MAX ? double(n) : 0;
                return v;
            }
            case 0xd0: return int64_t(int8_t(be(1)));
            case 0xd1: return int64_t(int16_t(be(2)));
            case 0xd2: return int64_t(int32_t(be(4)));
            case 0xd3: return int64_t(be(8));
            case 0xd9: case 0xda: case 0xdb: return text(be(1 << (c - 0xd9)));
            case 0xdc: case 0xdd: return array(be(2 << (c - 0xdc)), depth);
            case 0xde: case 0xdf: return map(be(2 << (c - 0xde)), depth);
        }
        malformed("a byte of the header is no msgpack of this contract");
    }

  public:
    explicit Unpacker(const Bytes& bytes) : in(bytes) {}
    Value all() {
        Value v = next(0);
        if (at != in.size()) malformed("bytes follow the header");
        return v;
    }
};

// ---- fields ------------------------------------------------------------------------------------------------------
// A line: name, type, R required | N none | =default, bounds. "(0" is exclusive, "M" is INTEGER_MAX. A type of capital
// letters is a map of that name, [T] an array.
inline const char* const SCHEMA = R"(
hello client_id i R 0 999999;session t R;holding [i =[] 0 64 1 M;encodings [s N 0 16 1 128;start START N
welcome client_id i R 0 999999;run_id t R;clients i R 1 1000000;seed i R 0 M;version i R 0 M;model s R 1 128;data s R 1 128;partition PARTITION R;training TRAINING R;tensors [TENSOR R 1 2000;signature d R;heartbeat_s f R (0 604800;lease_s f R (0 604800;model_plan MODEL N;data_plan DATA N;objective OBJECTIVE N;buffers [TENSOR N 0 2000;extra b N;encoding ENCODING N;settings x N;frozen d N
task task_id i R 1 M;number i R 0 M;version i R 0 M;learning_rate f R (0 1000000;signature d R;payload_bytes p R;evaluate b N;run_id t N;checksum c N;encoding e N float32,bfloat16,float16,int8;accepted_task i N 0 M
update task_id i R 1 M;base_version i R 0 M;kind e R gradient,delta;num_examples i R 1 M;steps i R 1 M;loss l R;learning_rate f R (0 1000000;signature d R;payload_bytes p R;batch_examples i N 1 M;evaluation EVALUATION N;checksum c N;encoding e N float32,bfloat16,float16,int8,top-k;metrics m N
ack task_id i R 1 M;outcome e R accepted,duplicate,rejected;first_outcome e R accepted,rejected;reason r N
heartbeat number i R 0 M;version i R 0 M;newest_task i N 0 M;heard i N 0 M
bye reason s ="" 0 1000
stop reason e R finished,shutdown,superseded;version i R 0 M;failed b N;message s N 0 1000
error reason r R;message s ="" 0 1000;task_id i N 1 M;code_error b N
chunk task_id i R 1 M;offset i R 0 17179869184
credit task_id i R 1 M;have i R 0 17179869184;until i R 0 17179869184;again b N
START home t R;number i R 1 M
TENSOR name s R 1 128;shape [i R 0 8 1 1099511627776;dtype e R float32
MODEL norm s N 1 128;projection_head i N 1 M
DATA normalise s N 1 128;column s N 1 128;labels d N;variant VARIANT N
VARIANT name s R 1 128;rate f R 1e-6 1000000
PARTITION name s R 1 128;alpha f N 0.001 1000000;min_examples i =1 1 1000000000;classes i N 1 1000000;smallest i N 1 1000000000;largest i N 1 1000000000;budget i N 1 1000000000;pool i N 1 1000000000;slow_share f N (0 1;slow_class i N 0 1000000
TRAINING name s R 1 128;batch_size i N 1 1000000000;steps i N 1 1000000000;epochs i N 1 1000000;momentum f =0.0 0 (1;weight_decay f =0.0 0 1;mu f N 0 1000000;temperature f N (0 1000000
OBJECTIVE name s R 1 128
ENCODING updates e R float32,bfloat16,float16,int8,top-k;models e R float32,bfloat16,float16,int8;block i N 8 65536;keep i N 1 M
EVALUATION accuracy f N 0 1;loss l N;examples i R 1 M;metrics m N
)";
inline const char* const REASONS =
    "malformed-header,header-too-large,unknown-type,wrong-protocol,unexpected-type,unknown-client,hello-first,"
    "wrong-signature,wrong-size,malformed-payload,wrong-checksum,no-credit,non-finite,zero-update,unknown-task,"
    "expired-task,unknown-version,run-finished,norm-too-large,not-stored,rate-limited,quarantined,not-the-owner,unavailable";

struct Field { Bytes name, type, presence; std::vector<Bytes> bounds; };
using Fields = std::vector<Field>;

inline const std::map<Bytes, Fields>& schema() {
    static const auto made = [] {
        std::map<Bytes, Fields> all;
        std::istringstream lines{SCHEMA};
        for (Bytes line; std::getline(lines, line);) {
            if (line.empty()) continue;
            auto space = line.find(' ');
            std::istringstream parts{line.substr(space + 1)};
            for (Bytes part; std::getline(parts, part, ';');) {
                std::istringstream words{part};
                Field f;
                words >> f.name >> f.type >> f.presence;
                for (Bytes w; words >> w;) f.bounds.push_back(w);
                all[line.substr(0, space)].push_back(f);
            }
        }
        return all;
    }();
    return made;
}

inline bool one_of(const Bytes& list, const Bytes& s) { return ("," + list + ",").find("," + s + ",") != Bytes::npos && !s.empty(); }
inline bool is_hex(const Bytes& s, size_t n) { return s.size() == n && s.find_first_not_of("0123456789abcdef") == Bytes::npos; }
inline double limit(const Bytes& b) { return std::stod(b[0] == '(' ? b.substr(1) : b); }
inline int64_t whole(const Bytes& b) { return b == "M" ? INT64_MAX : std::stoll(b); }

inline void check_name(const Bytes& s, const char* also) {
    bool fine = !s.empty() && s.size() <= 64;
    for (char c : s) fine = fine && (islower(c) || isdigit(c) || strchr("_./-", c) || (*also && isupper(c)));
    if (!fine) malformed("`" + s + "` is no name of a metric or setting");
}

inline void check_fields(const Value& v, const Bytes& name);

inline void check(const Field& f, const Value& v, const Bytes& type, size_t b = 0) {
    auto need = [&](bool fine) { if (!fine) malformed("`" + f.name + "` is of the wrong type or out of range"); };
    auto real = [&] {
        need(v.kind == Value::Float || v.kind == Value::Int);
        double x = v.kind == Value::Int ? (v.i == INT64_MIN ? v.f : double(v.i)) : v.f;
        need(std::isfinite(x));
        return x;
    };
    if (type[0] == '[') {
        need(v.kind == Value::Arr && int64_t(v.a.size()) >= whole(f.bounds[0]) && int64_t(v.a.size()) <= whole(f.bounds[1]));
        for (auto& e : v.a) check(f, e, type.substr(1), 2);
    } else if (type.size() > 1) {
        check_fields(v, type);
    } else switch (type[0]) {
        case 'b': need(v.kind == Value::Bool); break;
        case 'i': need(v.kind == Value::Int && v.i >= whole(f.bounds[b]) && v.i <= whole(f.bounds[b + 1])); break;
        case 'p': need(v.kind == Value::Int && v.i >= 4 && v.i <= FRAMES_MAX * FRAME_BYTES_MAX && v.i % 4 == 0); break;
        case 'l': need(std::abs(real()) <= 3.4028234663852886e38); break;
        case 'f': {
            double x = real(), lo = limit(f.bounds[b]), hi = limit(f.bounds[b + 1]);
            need((f.bounds[b][0] == '(' ? x > lo : x >= lo) && (f.bounds[b + 1][0] == '(' ? x < hi : x <= hi));
            break;
        }
        case 's': { auto n = characters(v.s); need(v.kind == Value::Str && n >= whole(f.bounds[b]) && n <= whole(f.bounds[b + 1])); break; }
        case 't': need(v.kind == Value::Str && is_hex(v.s, 32)); break;
        case 'd': need(v.kind == Value::Str && is_hex(v.s, 64)); break;
        case 'c': need(v.kind == Value::Str && is_hex(v.s, 16)); break;
        case 'e': need(v.kind == Value::Str && one_of(f.bounds[b], v.s)); break;
        case 'r': need(v.kind == Value::Str && one_of(REASONS, v.s)); break;
        case 'm': case 'x':
            need(v.kind == Value::Map && v.a.size() <= 32);
            for (size_t n = 0; n < v.a.size(); n++) {
                auto& e = v.a[n];
                check_name(v.k[n], type[0] == 'x' ? "A" : "");
                if (type[0] == 'x' && e.kind == Value::Str) need(characters(e.s) <= 200);
                else need((e.kind == Value::Int && !(type[0] == 'x' && e.i == INT64_MIN && e.f)) || (e.kind == Value::Float && std::isfinite(e.f)));
            }
    }
}

inline int64_t numbers_of(const Value& tensors) {
    double count = 0;                            // a product of dimensions may exceed 64 bits
    for (auto& t : tensors.a) {
        double n = 1;
        for (auto& d : t.get("shape")->a) n *= double(d.i);
        count += n;
    }
    return count > 4.5e9 ? INT64_MAX : int64_t(count);
}

inline void check_fields(const Value& v, const Bytes& name) {
    if (v.kind != Value::Map) malformed("`" + name + "` is not a map");
    for (auto& f : schema().at(name)) {
        auto at = std::find(v.k.begin(), v.k.end(), f.name);
        if (at == v.k.end() ? f.presence == "R" : v.a[at - v.k.begin()].kind == Value::Nil && f.presence != "N")
            malformed("`" + f.name + "` is missing");
        if (auto field = v.get(f.name)) check(f, *field, f.type);
    }
    auto need = [&](bool fine, const char* text) { if (!fine) malformed(text); };
    if (name == "welcome") {
        need(v.num("client_id") < v.num("clients"), "`client_id` is not under `clients`");
        need(v.real("lease_s") > v.real("heartbeat_s"), "`lease_s` is not over `heartbeat_s`");
        if (auto e = v.get("encoding")) need(e->num("keep") <= numbers_of(*v.get("tensors")), "`keep` is over the parameters");
    } else if (name == "ENCODING") {
        bool int8 = v.str("updates") == "int8" || v.str("models") == "int8";
        need(int8 == (v.get("block") != nullptr), "`block` is for int8 only");
        need((v.str("updates") == "top-k") == (v.get("keep") != nullptr), "`keep` is for top-k only");
    } else if (name == "credit") {
        need(v.num("until") >= v.num("have"), "`until` is under `have`");
    } else if (name == "ack") {
        need(v.str("outcome") == "duplicate" || v.str("outcome") == v.str("first_outcome"), "the outcomes differ");
        need((v.str("first_outcome") == "rejected") == (v.get("reason") != nullptr), "`reason` is for a rejection only");
    }
}

inline Value decode(const Bytes& header) {
    if (header.size() > HEADER_BYTES_MAX) throw Refused("header-too-large", "the header is too large");
    Value v = Unpacker(header).all();
    if (v.kind != Value::Map) malformed("the header is not a map");
    auto protocol = v.get("protocol"), type = v.get("type");
    if (!protocol || protocol->kind != Value::Int) malformed("`protocol` is missing or no integer");
    if (protocol->i != 1) throw Refused("wrong-protocol", "the protocol is " + std::to_string(protocol->i) + ", and must be 1");
    if (!type || type->kind != Value::Str) malformed("`type` is missing or no text");
    if (!schema().count(type->s) || isupper(type->s[0])) throw Refused("unknown-type", "`" + type->s + "` is no type of message");
    check_fields(v, type->s);
    return v;
}

// The header of a message, from its fields in the order of the contract's tables.
inline Bytes encode(const Bytes& type, const Value& fields) {
    Value v = Value::map();
    v.set("protocol", 1).set("type", type);
    for (size_t n = 0; n < fields.k.size(); n++) v.set(fields.k[n], fields.a[n]);
    Bytes out;
    pack(out, v);
    return out;
}

// ---- signature and checksum --------------------------------------------------------------------------------------
inline Bytes hex(const void* data, size_t n) {
    static const char* digits = "0123456789abcdef";
    Bytes out;
    for (size_t i = 0; i < n; i++) { auto c = static_cast<const uint8_t*>(data)[i]; out += digits[c >> 4]; out += digits[c & 15]; }
    return out;
}

inline Bytes random_token() { uint8_t b[16]; randombytes_buf(b, 16); return hex(b, 16); }

inline Bytes signature(const Value& tensors, const Value* buffers = nullptr) {
    Bytes in;
    auto le = [&](uint64_t v, int n) { while (n--) { in += char(v); v >>= 8; } };
    for (auto list : {&tensors, buffers})
        if (list)
            for (auto& t : list->a) {
                auto &name = t.get("name")->s, &dtype = t.get("dtype")->s;
                auto& shape = t.get("shape")->a;
                le(name.size(), 4); in += name;
                le(shape.size(), 4); for (auto& d : shape) le(uint64_t(d.i), 8);
                le(dtype.size(), 4); in += dtype;
            }
    uint8_t digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256(digest, reinterpret_cast<const uint8_t*>(in.data()), in.size());
    return hex(digest, sizeof digest);
}

inline Bytes checksum(const Bytes& payload) {
    Bytes be;
    put_be(be, XXH3_64bits(payload.data(), payload.size()), 8);
    return hex(be.data(), 8);
}

// ---- payloads (this code assumes a little-endian machine) --------------------------------------------------------
using Numbers = std::vector<float>;
struct Encoding { Bytes name = "float32"; int64_t block = 0, keep = 0; };

inline uint32_t bits(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
inline float from_bits(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }

inline uint16_t to_bfloat16(float x) {
    uint32_t b = bits(x), sign = b >> 16 & 0x8000;
    if (std::isnan(x)) return sign | 0x7fc0;
    if (std::isinf(x)) return sign | 0x7f80;
    uint32_t m = b & 0x7fffffff;
    return sign | std::min<uint32_t>((m + 0x7fff + (m >> 16 & 1)) >> 16, 0x7f7f);
}

inline uint16_t to_float16(float x) {
    uint32_t b = bits(x), sign = b >> 16 & 0x8000, m = b & 0x7fffffff;
    if (std::isnan(x)) return sign | 0x7e00;
    if (std::isinf(x)) return sign | 0x7c00;
    if (m < 0x38800000) return sign | uint16_t(std::nearbyint(std::abs(x) * 16777216.0f));
    if (m > 0x477fe000) return sign | 0x7bff;
    return sign | (((m + 0xfff + (m >> 13 & 1)) >> 13) - (112 << 10));
}

inline float from_float16(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return from_bits(sign | 0x7f800000 | m << 13);
    if (e == 0) return from_bits(sign | bits(float(m) / 16777216.0f));
    return from_bits(sign | (e + 112) << 23 | m << 13);
}

inline int64_t payload_size(const Encoding& e, int64_t d, int64_t behind) {
    int64_t n = e.name == "float32" ? 4 * d : e.name == "top-k" ? 8 * e.keep
              : e.name == "int8" ? 4 * ((d + e.block - 1) / e.block) + d : 2 * d;
    return (n + 3) / 4 * 4 + 4 * behind;
}

template <class T> void put(Bytes& out, T v) { out.append(reinterpret_cast<const char*>(&v), sizeof v); }

// The payload of `x`, whose first `d` numbers are encoded.
inline Bytes encode_numbers(const Encoding& e, const Numbers& x, int64_t d) {
    Bytes out;
    out.reserve(payload_size(e, d, int64_t(x.size()) - d));
    if (e.name == "float32") d = 0;
    else if (e.name == "bfloat16") for (int64_t n = 0; n < d; n++) put(out, to_bfloat16(x[n]));
    else if (e.name == "float16") for (int64_t n = 0; n < d; n++) put(out, to_float16(x[n]));
    else if (e.name == "int8") {
        Bytes codes;
        for (int64_t from = 0; from < d; from += e.block) {
            float m = 0;
            int64_t to = std::min(d, from + e.block);
            for (int64_t n = from; n < to; n++) m = std::isfinite(x[n]) && std::isfinite(m) ? std::max(m, std::abs(x[n])) : NAN;
            float s = std::isnan(m) ? from_bits(0x7fc00000) : m / 127.0f;
            while (s > 0 && std::isinf(s * 127.0f)) s = std::nextafter(s, 0.0f);
            put(out, s);
            for (int64_t n = from; n < to; n++)
                codes += char(s > 0 ? int(std::clamp(std::nearbyint(x[n] / s), -127.0f, 127.0f)) : 0);
        }
        out += codes;
    } else {
        std::vector<uint32_t> order(d);
        std::iota(order.begin(), order.end(), 0);
        auto rank = [&](uint32_t n) { return std::isnan(x[n]) ? 0xffffffffu : bits(x[n]) & 0x7fffffff; };
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return rank(a) > rank(b); });
        order.resize(e.keep);
        std::sort(order.begin(), order.end());
        for (auto n : order) put(out, n);
        for (auto n : order) put(out, x[n]);
    }
    out.resize((out.size() + 3) / 4 * 4);
    out.append(reinterpret_cast<const char*>(x.data() + d), 4 * (x.size() - d));
    return out;
}

inline Numbers decode_numbers(const Encoding& e, const Bytes& in, int64_t d, int64_t behind) {
    if (int64_t(in.size()) != payload_size(e, d, behind)) throw Refused("wrong-size", "the payload has the wrong size");
    Numbers x(d + behind);
    auto at = [&](auto sample, int64_t n) { memcpy(&sample, in.data() + n, sizeof sample); return sample; };
    auto bad = [](const char* text) { throw Refused("malformed-payload", text); };
    if (e.name == "float32") memcpy(x.data(), in.data(), 4 * d);
    else if (e.name == "bfloat16") for (int64_t n = 0; n < d; n++) x[n] = from_bits(uint32_t(at(uint16_t(), 2 * n)) << 16);
    else if (e.name == "float16") for (int64_t n = 0; n < d; n++) x[n] = from_float16(at(uint16_t(), 2 * n));
    else if (e.name == "int8") {
        int64_t codes = 4 * ((d + e.block - 1) / e.block);
        for (int64_t n = 0; n < d; n++) {
            float s = at(float(), 4 * (n / e.block));
            if (s < 0) bad("a scale is negative");
            x[n] = s * at(int8_t(), codes + n);
        }
    } else
        for (int64_t n = 0; n < e.keep; n++) {
            auto p = at(uint32_t(), 4 * n);
            if (p >= d || (n && p <= at(uint32_t(), 4 * n - 4))) bad("the positions do not ascend under d");
            x[p] = at(float(), 4 * (e.keep + n));
        }
    memcpy(x.data() + d, in.data() + in.size() - 4 * behind, 4 * behind);
    return x;
}

inline std::vector<Bytes> split(const Bytes& payload) {
    std::vector<Bytes> frames;
    for (size_t n = 0; n < payload.size(); n += FRAME_BYTES_MAX) frames.push_back(payload.substr(n, FRAME_BYTES_MAX));
    return frames;
}

inline Bytes join(const std::vector<Bytes>& frames, int64_t payload_bytes) {
    Bytes all;
    bool fine = !frames.empty() && int64_t(frames.size()) <= FRAMES_MAX;
    for (auto& f : frames) {
        fine = fine && !f.empty() && int64_t(f.size()) <= FRAME_BYTES_MAX && f.size() % 4 == 0;
        all += f;
    }
    if (!fine || int64_t(all.size()) != payload_bytes) throw Refused("wrong-size", "the payload frames have the wrong size");
    return all;
}
}  // namespace wire

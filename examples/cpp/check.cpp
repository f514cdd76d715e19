// Test of wire.hpp with proto/vectors: each header, refusal, encoding and cut.
#include <fstream>
#include <iostream>

#include "wire.hpp"
using namespace wire;

static Bytes read(const Bytes& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot read " + path);
    return {std::istreambuf_iterator<char>(in), {}};
}

// The JSON of vectors.json: numbers with a point or an exponent are floats.
class Json {
    Bytes in;
    size_t at = 0;
    void blank() { while (at < in.size() && isspace(uint8_t(in[at]))) at++; }
    bool next(char c) { blank(); return at < in.size() && in[at] == c && ++at; }
    Bytes text() {
        Bytes out;
        for (next('"'); in.at(at) != '"'; at++) {
            if (in[at] != '\\') { out += in[at]; continue; }
            if (in[++at] == 'u') {               // of the basic plane
                auto c = unsigned(std::stoul(in.substr(at + 1, 4), nullptr, 16));
                at += 4;
                if (c < 0x80) out += char(c);
                else if (c < 0x800) { out += char(0xc0 | c >> 6); out += char(0x80 | (c & 63)); }
                else { out += char(0xe0 | c >> 12); out += char(0x80 | (c >> 6 & 63)); out += char(0x80 | (c & 63)); }
            } else out += in[at] == 'n' ? '\n' : in[at] == 't' ? '\t' : in[at];
        }
        at++;
        return out;
    }

  public:
    explicit Json(Bytes text) : in(std::move(text)) {}
    Value value() {
        blank();
        char c = in.at(at);
        if (c == '"') {  // digits alone are an integer beyond 2^53 - 1
            Bytes word = text();
            bool digits = word.size() > 15 && word.size() < 20 && word.find_first_not_of("0123456789") == Bytes::npos;
            return digits ? Value(int64_t(std::stoll(word))) : Value(word);
        }
        if (next('[')) {
            Value v = Value::array();
            while (!next(']')) { v.a.push_back(value()); next(','); }
            return v;
        }
        if (next('{')) {
            Value v = Value::map();
            while (!next('}')) { auto key = text(); next(':'); v.k.push_back(key); v.a.push_back(value()); next(','); }
            return v;
        }
        auto end = in.find_first_of(",]} \n", at);
        Bytes word = in.substr(at, end - at);
        at = end;
        if (word == "true" || word == "false") return word == "true";
        if (word == "null") return {};
        if (word.find_first_of(".eE") != Bytes::npos) return std::stod(word);
        return int64_t(std::stoll(word));
    }
};

static Bytes unhex(const Bytes& h) {
    Bytes out;
    for (size_t n = 0; n < h.size(); n += 2) out += char(std::stoi(h.substr(n, 2), nullptr, 16));
    return out;
}

// The fields of a map in the order of the tables, with their defaults.
static Value ordered(const Value& v, const Bytes& name);
static Value typed(const Value& v, const Bytes& type) {
    if (type[0] == '[') { Value r = Value::array(); for (auto& e : v.a) r.a.push_back(typed(e, type.substr(1))); return r; }
    if (type.size() > 1) return ordered(v, type);
    if ((type == "f" || type == "l") && v.kind == Value::Int) return double(v.i);
    if (type == "m") { Value r = v; for (auto& e : r.a) e = typed(e, "f"); return r; }
    return v;
}
static Value ordered(const Value& v, const Bytes& name) {
    Value r = Value::map();
    for (auto& f : schema().at(name)) {
        if (auto field = v.get(f.name)) r.set(f.name, typed(*field, f.type));
        else if (f.presence[0] == '=') r.set(f.name, f.presence == "=\"\"" ? Value("") : Json(f.presence.substr(1) + " ").value());
    }
    for (size_t n = 0; n < v.k.size(); n++)
        if (v.a[n].kind != Value::Nil && std::find(r.k.begin(), r.k.end(), v.k[n]) == r.k.end()) r.set(v.k[n], v.a[n]);
    return r;
}

static int failed = 0, passed = 0;
static void test(bool fine, const Bytes& name) {
    (fine ? passed : failed)++;
    if (!fine) std::cerr << "FAILED " << name << "\n";
}
static Bytes reason_of(const Bytes& header) {
    try { decode(header); return "none"; } catch (const Refused& e) { return e.reason; }
}
static Numbers numbers(const Bytes& raw) { Numbers x(raw.size() / 4); memcpy(x.data(), raw.data(), raw.size()); return x; }
static Bytes raw(const Numbers& x) { return {reinterpret_cast<const char*>(x.data()), 4 * x.size()}; }
static Encoding encoding(const Value& v) { return {v.str("encoding"), v.num("block"), v.num("keep")}; }

int main(int argc, char** argv) try {
    if (argc != 2) throw std::runtime_error("usage: check-vectors FOLDER, where FOLDER holds vectors.json");
    Bytes folder = Bytes(argv[1]) + "/";
    Value all = Json(read(folder + "vectors.json")).value();
    auto each = [&](const char* part, auto run) {
        auto v = all.get(part);
        for (size_t n = 0; n < v->k.size(); n++)
            try { run(v->k[n], v->a[n]); } catch (const std::exception& e) { test(false, v->k[n] + ": " + e.what()); }
    };
    std::map<Bytes, Value> headers;
    each("headers", [&](auto& name, auto& v) {
        Bytes bytes = read(folder + name + ".bin"), type = v.str("type");
        Value expected = ordered(*v.get("fields"), type);
        headers[name] = ordered(decode(bytes), type);
        test(encode(type, expected) == bytes, "encode " + name);
        expected.set("protocol", 1).set("type", type);
        test(headers[name] == expected, "decode " + name);
    });
    each("accepted", [&](auto& name, auto& v) {
        Value got = decode(read(folder + "accepted/" + name + ".bin")), &want = headers[v.str("decodes_as")];
        Value known = ordered(got, got.str("type"));
        for (size_t n = 0; n < want.k.size(); n++)
            test(known.get(want.k[n]) && *known.get(want.k[n]) == want.a[n], "accepted " + name + " " + want.k[n]);
    });
    each("invalid", [&](auto& name, auto& v) {
        auto got = reason_of(read(folder + "invalid/" + name + ".bin"));
        test(got == v.str("reason"), "invalid " + name + ": " + got);
    });
    test(reason_of(Bytes(HEADER_BYTES_MAX + 1, '\0')) == "header-too-large", "header-too-large");
    each("encodings", [&](auto& name, auto& v) {
        Numbers x = numbers(unhex(v.str("numbers")));
        int64_t behind = v.num("behind"), d = int64_t(x.size()) - behind;
        Bytes bytes = read(folder + "encodings/" + name + ".bin");
        test(encode_numbers(encoding(v), x, d) == bytes, "encode " + name);
        test(raw(decode_numbers(encoding(v), bytes, d, behind)) == unhex(v.str("decoded")), "decode " + name);
    });
    each("malformed", [&](auto& name, auto& v) {
        Bytes got = "none";
        try { decode_numbers(encoding(v), read(folder + "malformed/" + name + ".bin"), v.num("dimension"), 0); }
        catch (const Refused& e) { got = e.reason; }
        test(got == "malformed-payload", "malformed " + name + ": " + got);
    });
    auto payload = all.get("payload");
    Numbers x;
    for (auto& n : payload->get("numbers")->a) x.push_back(float(n.kind == Value::Int ? double(n.i) : n.f));
    test(encode_numbers({}, x, int64_t(x.size())) == read(folder + "payload.bin"), "payload");
    test(signature(*payload->get("tensors")) == payload->str("signature"), "signature");
    for (auto& v : all.get("checksums")->a) {
        Bytes bytes(v.num("bytes"), '\0');
        for (size_t i = 0; i < bytes.size(); i++) bytes[i] = char(131 * i + i / 256);
        test(checksum(bytes) == v.str("xxh3"), "checksum of " + std::to_string(bytes.size()) + " bytes");
    }
    for (auto part : {"split", "accepted", "wrong_size"})
        for (auto& v : all.get("frames")->get(part)->a) {
            Bytes got = "accepted", name = Bytes("frames ") + part + " " + v.str("why");
            std::vector<Bytes> frames;
            for (auto& n : v.get("frame_bytes")->a) frames.push_back(Bytes(n.i, '\0'));
            if (part == Bytes("split")) test(split(Bytes(v.num("payload_bytes"), '\0')) == frames, name);
            try { join(frames, v.num("payload_bytes")); } catch (const Refused&) { got = "wrong_size"; }
            test(got == (part == Bytes("wrong_size") ? "wrong_size" : "accepted"), name);
        }
    std::cout << passed << " passed, " << failed << " failed\n";
    return failed ? 1 : 0;
} catch (const std::exception& e) {
    std::cerr << "check-vectors: " << e.what() << "\n";
    return 2;
}

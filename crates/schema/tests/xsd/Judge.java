import java.io.File;
import java.util.Arrays;
import javax.xml.XMLConstants;
import javax.xml.transform.stream.StreamSource;
import javax.xml.validation.Schema;
import javax.xml.validation.SchemaFactory;
import javax.xml.validation.Validator;
import org.xml.sax.ErrorHandler;
import org.xml.sax.SAXException;
import org.xml.sax.SAXParseException;

/** Judges folders, each with a schema.xsd and documents: one line of verdicts for each. Nothing is fetched. */
public class Judge {
    /** Counts errors and passes over warnings. */
    private static final class Errors implements ErrorHandler {
        int count;

        @Override
        public void warning(SAXParseException e) {
        }

        @Override
        public void error(SAXParseException e) {
            count++;
        }

        @Override
        public void fatalError(SAXParseException e) throws SAXException {
            count++;
            throw e;
        }
    }

    public static void main(String[] args) throws Exception {
        File[] folders = new File(args[0]).listFiles(File::isDirectory);
        Arrays.sort(folders);
        for (File folder : folders) {
            File[] documents = folder.listFiles((dir, name) -> name.endsWith(".xml"));
            Arrays.sort(documents);
            StringBuilder line = new StringBuilder();
            Schema schema = null;
            Errors errors = new Errors();
            try {
                SchemaFactory factory = SchemaFactory.newInstance(XMLConstants.W3C_XML_SCHEMA_NS_URI);
                factory.setProperty(XMLConstants.ACCESS_EXTERNAL_SCHEMA, "");
                factory.setProperty(XMLConstants.ACCESS_EXTERNAL_DTD, "");
                factory.setErrorHandler(errors);
                schema = factory.newSchema(new StreamSource(new File(folder, "schema.xsd")));
            } catch (Exception e) {
                errors.count++;
            }
            line.append(errors.count == 0 ? "accepted" : "refused");
            for (File document : documents) {
                line.append(' ').append(errors.count == 0 ? judge(schema, document) : "-");
            }
            System.out.println(line);
        }
    }

    private static String judge(Schema schema, File document) {
        Errors errors = new Errors();
        try {
            Validator validator = schema.newValidator();
            validator.setProperty(XMLConstants.ACCESS_EXTERNAL_SCHEMA, "");
            validator.setProperty(XMLConstants.ACCESS_EXTERNAL_DTD, "");
            validator.setErrorHandler(errors);
            validator.validate(new StreamSource(document));
        } catch (Exception e) {
            errors.count++;
        }
        return errors.count == 0 ? "valid" : "invalid";
    }
}
